#include <catch2/catch.hpp>
#include <numeric>

#include "base/rng.h"
#include "nic/wire/chunk_layout.h"
#include "worker/membership/part_layout.h"

namespace pbox::test {
namespace {

uint64_t bytes_of(const worker::TensorSpec& tensor, uint64_t elements) {
  return elements * wire::dtype_bytes(tensor.dtype);
}

std::vector<uint64_t> bytes_by_part(const std::vector<worker::TensorSpec>& tensors,
                                    const std::vector<std::vector<worker::Piece>>& parts) {
  std::vector<uint64_t> bytes;
  for (const auto& pieces : parts) {
    uint64_t sum = 0;
    for (const auto& piece : pieces) sum += bytes_of(tensors[piece.tensor], piece.elements);
    bytes.push_back(sum);
  }
  return bytes;
}

}  // namespace

TEST_CASE("the parts cover the job: each element is in one piece, each piece has whole chunks") {
  Rng rng(7);
  for (int run = 0; run < 200; ++run) {
    std::vector<worker::TensorSpec> tensors(1 + rng.below(20));
    for (auto& tensor : tensors) {
      tensor.elements = 1 + rng.below(50'000);
      tensor.dtype = rng.below(2) == 0 ? wire::Dtype::kF32 : wire::Dtype::kBf16;
    }
    const uint32_t chunk_bytes = 64 * static_cast<uint32_t>(1 + rng.below(100));
    const auto parts =
        cut_into_parts(tensors, chunk_bytes, 1 + static_cast<uint32_t>(rng.below(9)));
    // indexed by tensor: a tensor's pieces are consecutive in the order of parts
    std::vector<uint64_t> next(tensors.size(), 0);
    for (const auto& pieces : parts) {
      uint32_t tensor_before = 0;
      for (const auto& piece : pieces) {
        REQUIRE(piece.tensor >= tensor_before);
        tensor_before = piece.tensor;
        REQUIRE(piece.elements > 0);
        REQUIRE(piece.first_element == next[piece.tensor]);
        REQUIRE(bytes_of(tensors[piece.tensor], piece.first_element) % chunk_bytes == 0);
        next[piece.tensor] += piece.elements;
      }
    }
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      REQUIRE(next[tensor] == tensors[tensor].elements);
    }
  }
}

TEST_CASE("parts differ by at most one chunk per tensor, and a large tensor is in all of them") {
  std::vector<worker::TensorSpec> tensors(161);
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    tensors[tensor].elements = tensor % 3 == 0 ? 64 : 8192 * (1 + tensor % 17);
  }
  const auto parts = worker::cut_into_parts(tensors, 32'768, 8);
  const auto bytes = bytes_by_part(tensors, parts);
  const auto [least, most] = std::minmax_element(bytes.begin(), bytes.end());
  CHECK(*most - *least <= 32'768);
  for (const auto& pieces : parts) {
    const bool has_large = std::any_of(pieces.begin(), pieces.end(), [](const auto& piece) {
      return piece.tensor == 16;  // 17 chunks
    });
    CHECK(has_large);
  }
}

TEST_CASE("one part is the whole job, and a job with few chunks has empty parts") {
  const std::vector<worker::TensorSpec> tensors = {{.name = "a", .elements = 100},
                                                   {.name = "b", .elements = 7}};
  const auto one = worker::cut_into_parts(tensors, 4096, 1);
  REQUIRE(one.size() == 1);
  REQUIRE(one[0].size() == 2);
  CHECK(one[0][1].elements == 7);
  const auto many = worker::cut_into_parts(tensors, 4096, 4);
  CHECK(many[0].size() == 1);
  CHECK(many[1].size() == 1);
  CHECK(many[2].empty());
  CHECK(many[3].empty());
}

}  // namespace pbox::test
