#include <catch2/catch.hpp>
#include <cerrno>
#include <memory>
#include <set>
#include <string>

#include "base/result.h"

namespace pbox {
namespace {

Result<int> half(int number) {
  if (number % 2 != 0) return Error{ErrorCode::kInvalidArgument, "odd"};
  return number / 2;
}

TEST_CASE("a result is a value or an error, never both") {
  const auto good = half(4);
  REQUIRE(good.ok());
  CHECK(good);
  CHECK(*good == 2);
  const auto bad = half(3);
  REQUIRE_FALSE(bad.ok());
  CHECK_FALSE(bad);
  CHECK(bad.error().code == ErrorCode::kInvalidArgument);
  CHECK(bad.error().message == "odd");
}

TEST_CASE("a result carries a value that can only be moved") {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  REQUIRE(result.ok());
  const std::unique_ptr<int> taken = std::move(*result);
  CHECK(*taken == 5);
}

TEST_CASE("a status without an error is ok") {
  CHECK(ok_status().ok());
  const Status failed = Error{ErrorCode::kTimeout, "late"};
  CHECK_FALSE(failed.ok());
}

TEST_CASE("a system error names what failed and why") {
  const Error error = system_error("cannot open the port", EACCES);
  CHECK(error.code == ErrorCode::kSystem);
  CHECK(error.message == "cannot open the port: Permission denied");
}

TEST_CASE("every error code has its own text") {
  std::set<std::string> names;
  constexpr int kCodeCount = static_cast<int>(ErrorCode::kInternal) + 1;
  for (int code = 0; code < kCodeCount; ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  CHECK(names.size() == kCodeCount);
  CHECK(names.count("unknown") == 0);
  CHECK(std::string(to_string(static_cast<ErrorCode>(kCodeCount))) == "unknown");
}

}  // namespace
}  // namespace pbox
