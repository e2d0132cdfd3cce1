"""Responses and messages by way of chat, for lanes that have the chat route alone. Pure: no I/O but the relay's."""
