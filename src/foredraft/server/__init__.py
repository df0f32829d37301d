"""OpenAI's HTTP API over one served model. Knows neither drafters nor models: it is handed what it asks."""
