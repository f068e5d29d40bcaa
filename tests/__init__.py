from tests.sandboxes.doubles.hf_endpoint import reserve

reserve()
