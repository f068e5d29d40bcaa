"""The OpenAPI document of both surfaces, made from the types that decode requests and from the routes."""
