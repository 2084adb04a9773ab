"""A C++ program that checks the native library without Python, and how to build and run it in three ways."""
