#define CATCH_CONFIG_MAIN  // Catch2 3 ignores it and brings a main function as a library
#include <catch2/catch.hpp>
