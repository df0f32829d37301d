"""Whether serving keeps what speculation promises, measured against a server over real sockets."""
