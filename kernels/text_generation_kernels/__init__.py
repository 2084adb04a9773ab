"""The ops a model is made of, and the devices that run them. Knows nothing about models, requests or processes."""
