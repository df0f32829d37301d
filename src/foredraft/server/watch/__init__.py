"""What looks on: metrics, the page, the API's own document."""
