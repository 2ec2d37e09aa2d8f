-- Where a transaction looks for tables from here on. Nobody's rows.
select set_config('search_path', $1, true)
