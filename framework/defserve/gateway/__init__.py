"""Topics over WebSocket: who is in, who may say what, and who hears it. What is said is nobody's business here."""
