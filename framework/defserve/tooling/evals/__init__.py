"""`defserve eval`: do models choose the right tool, and does it stay so?

A suite of cases is put to a model behind an HTTP endpoint, each case several times. What the model answers is recorded
in a file to commit, so that it can be judged again without the model. Only authors use this: no server imports it.
Whatever an endpoint or a file says is bounded and untrusted; keys stay in memory.
"""
