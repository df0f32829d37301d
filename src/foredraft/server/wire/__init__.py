"""What crosses the wire: requests, responses and events as OpenAI writes them."""
