"""Keeps schemathesis from two things: taking away the key it asks with, and calling a request right whose header is not."""

import os

import schemathesis
from schemathesis.core.parameters import ParameterLocation
from schemathesis.generation.meta import CoveragePhaseData

OWN = os.environ["STEPWELL_KEY"].split("_")[2]
NOBODY = "0" * len(OWN)


@schemathesis.hook
def before_call(context, case, **kwargs):
    # Revoking and rotating are tried on every other key.
    parameters = case.path_parameters or {}
    if parameters.get("id") == OWN and case.path.startswith("/v1/apikeys/"):
        parameters["id"] = NOBODY
    # Its coverage makes header values of letters and digits only. Where a pattern wants others (a tag is in quotes), it
    # fills in something wrong and calls the request right; all of these headers may be left out.
    data = case.meta.phase.data if case.meta else None
    if isinstance(data, CoveragePhaseData) and data.parameter_location != ParameterLocation.HEADER:
        without_wrong_headers(case)
    elif isinstance(data, CoveragePhaseData) and case.meta.generation.mode.is_positive:
        without_wrong_headers(case)


def without_wrong_headers(case):
    for parameter in case.operation.headers:
        value = (case.headers or {}).get(parameter.name)
        if value is not None and not (isinstance(value, str) and parameter.get_validator().is_valid(value)):
            del case.headers[parameter.name]
