-- Sets the search path for the rest of the transaction. Reads no tenant data.
select set_config('search_path', $1, true)
