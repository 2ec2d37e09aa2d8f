"""Keeps schemathesis from taking away the key it asks with: revoking and rotating are tried on every other key."""

import os

import schemathesis

OWN = os.environ["STEPWELL_KEY"].split("_")[2]
NOBODY = "0" * len(OWN)


@schemathesis.hook
def before_call(context, case, **kwargs):
    parameters = case.path_parameters or {}
    if parameters.get("id") == OWN and case.path.startswith("/v1/apikeys/"):
        parameters["id"] = NOBODY
