// Nothing of its own: the target whose precompiled headers the others use (cmake/weft.cmake).
