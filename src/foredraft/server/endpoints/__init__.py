"""The endpoints, a module a family of them: what answers, what describes the model, what says how the server fares."""
