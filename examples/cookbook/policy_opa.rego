# Small refunds are allowed, larger ones if a person agrees. Nobody without an account pays money back.
package shop

import rego.v1

default decision := {"outcome": "refuse", "reason": "no rule allows it"}

decision := {"outcome": "allow", "reason": "a small refund"} if {
	is_refund
	input.arguments.amount <= 1000
}

decision := {"outcome": "confirm", "reason": "more than 1000 cents"} if {
	is_refund
	input.arguments.amount > 1000
	input.arguments.amount <= 50000
}

is_refund if {
	input.tool == "refund"
	input.caller.kind != "anonymous"
}
