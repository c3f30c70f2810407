"""What is wrong with a server's definitions, found before a model finds it: rules over what it lists."""
