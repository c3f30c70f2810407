"""Serving while the code is edited: a parent that keeps the clients, and a child that is replaced on every change."""
