"""Client libraries that we did not write, against a whole server. A package, so that its tests share two servers."""
