#define CATCH_CONFIG_MAIN  // Catch2 3 ignores it and provides a main function in a library
#include <catch2/catch.hpp>
