"""Documents written from the published shape of public APIs, each with what makes it hard."""

from __future__ import annotations

from tests.openapi.apis import Json, operation, parameter


def ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def answers(schema: Json) -> Json:
    return {"200": {"description": "ok", "content": {"application/json": {"schema": schema}}}}


def _api(title: str, url: str, paths: Json, schemas: Json, version: str = "3.0.0") -> Json:
    return {
        "openapi": version,
        "info": {"title": title, "version": "1"},
        "servers": [{"url": url}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _form(properties: Json, *required: str) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"application/x-www-form-urlencoded": {"schema": schema, "encoding": {"expand": {"style": "deepObject"}}}}


STRIPE: Json = _api(
    "Stripe API",
    "https://api.stripe.com/",
    {
        "/v1/customers": {
            "get": operation(
                parameter("created", kind={"anyOf": [{"type": "object"}, {"type": "integer"}]}, style="deepObject"),
                parameter("limit", kind="integer"),
                parameter("starting_after"),
                parameter(
                    "expand", kind={"type": "array", "items": {"type": "string"}}, style="deepObject", explode=True
                ),
                operationId="GetCustomers",
                responses=answers(
                    {"type": "object", "properties": {"data": {"type": "array", "items": ref("customer")}}}
                ),
            ),
            "post": operation(
                operationId="PostCustomers",
                body=_form(
                    {
                        "email": {"type": "string", "maxLength": 512},
                        "address": {"anyOf": [{"type": "object"}, {"type": "string", "enum": [""]}]},
                        "expand": {"type": "array", "items": {"type": "string"}},
                    }
                ),
            ),
        },
        "/v1/customers/{customer}": {
            "get": operation(parameter("customer", "path"), operationId="GetCustomersCustomer"),
            "post": operation(
                parameter("customer", "path"),
                operationId="PostCustomersCustomer",
                body=_form({"email": {"type": "string"}}),
            ),
            "delete": operation(parameter("customer", "path"), operationId="DeleteCustomersCustomer"),
        },
    },
    {
        "customer": {
            "type": "object",
            "properties": {"id": {"type": "string"}, "default_source": {"anyOf": [ref("card"), {"type": "string"}]}},
            "x-expandableFields": ["default_source"],
        },
        "card": {"type": "object", "properties": {"customer": {"anyOf": [ref("customer")], "nullable": True}}},
    },
)
"""Forms, `deepObject`, and schemas that refer to each other in a circle."""

KUBERNETES: Json = _api(
    "Kubernetes",
    "https://kubernetes.example.com",
    {
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}": {
            "parameters": [parameter("name", "path"), parameter("pretty")],
            **{
                method: operation(
                    operationId=f"{verb}ApiextensionsV1CustomResourceDefinition",
                    body={"*/*": {"schema": ref("Definition")}} if method == "put" else None,
                    responses=answers(ref("Definition")),
                )
                for method, verb in (("get", "read"), ("put", "replace"), ("delete", "delete"))
            },
        },
        "/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}": {
            "get": operation(operationId="connectCoreV1GetNamespacedPodProxyWithPath")
        },
    },
    {
        "Definition": {
            "type": "object",
            "required": ["spec"],
            "properties": {
                "spec": {"allOf": [ref("JSONSchemaProps")], "default": {}, "description": "What it holds."},
                "status": {**ref("JSONSchemaProps"), "readOnly": True},
            },
            "x-kubernetes-group-version-kind": [],
        },
        "JSONSchemaProps": {
            "type": "object",
            "properties": {
                "$ref": {"type": "string"},
                "allOf": {"type": "array", "items": ref("JSONSchemaProps")},
                "not": ref("JSONSchemaProps"),
                "properties": {"type": "object", "additionalProperties": ref("JSONSchemaProps")},
                "exclusiveMinimum": {"type": "boolean"},
            },
        },
    },
)
"""A schema of schemas, whose properties are called like keywords; `*/*`; a path inside a path."""

OPENAI: Json = _api(
    "OpenAI API",
    "https://api.openai.com/v1",
    {
        "/chat/completions": {
            "post": operation(
                operationId="createChatCompletion",
                tags=["Chat"],
                body={"application/json": {"schema": ref("CreateChatCompletionRequest")}},
            )
        },
        "/files": {
            "post": operation(
                operationId="createFile", body={"multipart/form-data": {"schema": ref("CreateFileRequest")}}
            )
        },
        "/audio/speech": {
            "post": operation(
                operationId="createSpeech",
                body={"application/json": {"schema": {"type": "object", "properties": {"input": {"type": "string"}}}}},
                responses={"200": {"description": "ok", "content": {"application/octet-stream": {}}}},
            )
        },
    },
    {
        "Message": {
            "oneOf": [ref("UserMessage"), ref("SystemMessage")],
            "discriminator": {"propertyName": "role"},
        },
        "UserMessage": {
            "type": "object",
            "title": "User message",
            "properties": {
                "role": {"type": "string", "enum": ["user"]},
                "content": {
                    "oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "object"}, "minItems": 1}]
                },
            },
            "required": ["role", "content"],
        },
        "SystemMessage": {
            "type": "object",
            "properties": {"role": {"type": "string", "enum": ["system"]}, "content": {"type": "string"}},
            "required": ["role", "content"],
        },
        "Shared": {
            "type": "object",
            "properties": {
                "temperature": {"type": "number", "minimum": 0, "maximum": 2, "nullable": True, "example": 1}
            },
        },
        "CreateChatCompletionRequest": {
            "allOf": [
                ref("Shared"),
                {
                    "type": "object",
                    "properties": {
                        "messages": {"type": "array", "items": ref("Message"), "minItems": 1},
                        "model": {"anyOf": [{"type": "string"}, {"type": "string", "enum": ["gpt-5"]}]},
                        "stop": {
                            "oneOf": [
                                {"type": "string", "nullable": True},
                                {"type": "array", "items": {"type": "string"}},
                            ]
                        },
                    },
                    "required": ["messages", "model"],
                },
            ]
        },
        "CreateFileRequest": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string"}},
            "required": ["file", "purpose"],
        },
    },
)
"""`allOf` with references, discriminators, uploads, sound that comes back."""

SLACK: Json = _api(
    "Slack Web API",
    "https://slack.com/api",
    {
        f"/{name}": {
            method: operation(
                parameter("token", "header"),
                parameter("cursor"),
                operationId=name.replace(".", "_"),
                tags=[name.partition(".")[0]],
            )
        }
        for name, method in (("conversations.list", "get"), ("chat.postMessage", "post"), ("chat.delete", "post"))
    },
    {},
)
"""Methods with dots, and a token that is a parameter."""

WRITTEN = {"stripe": STRIPE, "kubernetes": KUBERNETES, "openai": OPENAI, "slack": SLACK}
