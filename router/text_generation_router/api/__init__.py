"""HTTP: routes, bodies, events and errors in TGI's form."""
