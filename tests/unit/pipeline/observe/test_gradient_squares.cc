#include <catch2/catch.hpp>
#include <vector>

#include "pipeline/observe/gradient_squares.h"

namespace pbox::pipeline {

TEST_CASE("every sixteenth round is measured, and few before") {
  std::vector<uint32_t> measured;
  for (uint32_t round = 0; round <= 64; ++round) {
    if (GradientSquares::measures(round)) measured.push_back(round);
  }
  CHECK(measured == std::vector<uint32_t>{0, 1, 2, 4, 8, 16, 32, 48, 64});
}

TEST_CASE("a round's squares are published once all of it is there") {
  GradientSquares squares;
  CHECK_FALSE(squares.newest());
  squares.add(0, 4, 10, 30);
  squares.add(0, 5, 10, 30);
  CHECK_FALSE(squares.newest());
  squares.add(0, 6, 10, 30);
  CHECK(squares.newest() == 15);
  squares.add(1, 1, 30, 30);
  CHECK(squares.newest() == 1);
}

TEST_CASE("two rounds that overlap are kept apart") {
  GradientSquares squares;
  squares.add(3, 1, 10, 20);
  squares.add(4, 100, 10, 20);
  squares.add(3, 2, 10, 20);
  CHECK(squares.newest() == 3);
  squares.add(4, 200, 10, 20);
  CHECK(squares.newest() == 300);
}

TEST_CASE("a round that lacks a tensor is published when its place is needed") {
  GradientSquares squares;
  squares.add(0, 7, 10, 20);
  squares.add(1, 8, 10, 20);
  CHECK_FALSE(squares.newest());
  squares.add(2, 9, 10, 20);
  CHECK(squares.newest() == 7);
  squares.add(0, 1000, 10, 20);  // far behind: it does not count
  squares.add(3, 1, 10, 20);
  CHECK(squares.newest() == 8);
  squares.add(2, 1, 10, 20);
  CHECK(squares.newest() == 10);
}

TEST_CASE("a round that completes late does not replace a newer one") {
  GradientSquares squares;
  squares.add(5, 1, 10, 20);
  squares.add(6, 2, 20, 20);
  squares.add(5, 1, 10, 20);
  CHECK(squares.newest() == 2);
}

}  // namespace pbox::pipeline
