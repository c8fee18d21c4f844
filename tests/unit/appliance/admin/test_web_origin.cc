#include <catch2/catch.hpp>

#include "appliance/admin/web_origin.h"

namespace pbox::admin {
namespace {

const OwnNames kNames({"Box1", "host7.rack.example", "host7", "metrics.example.", ""});

TEST_CASE("a request is answered under the names of the box, and under no other") {
  const struct {
    const char* host;
    bool is_own;
  } rows[] = {{"127.0.0.1:9540", true},
              {"10.0.0.7", true},
              {"[::1]:9540", true},
              {"[fd00::7]", true},
              {"localhost:8080", true},  // the near end of an SSH tunnel
              {"LOCALHOST", true},
              {"localhost.:9540", true},
              {"box1:9540", true},
              {"BOX1", true},
              {"host7.rack.example:9540", true},
              {"host7", true},
              {"metrics.example", true},
              {"evil.example:9540", false},
              {"box1.evil.example", false},
              {"host7.rack.example.evil.example", false},
              {"127.0.0.1.evil.example", false},
              {"10.0.0", false},
              {"box", false},
              {"", false},
              {":9540", false},
              {".", false},
              {"box1:", false},
              {"box1:http", false},
              {"box1:123456", false},
              {"box1:9540:1", false},
              {"[::1", false},
              {"[::1]9540", false},
              {"[]", false},
              {"user@box1", false},
              {"box1/", false},
              {"box1, evil.example", false}};
  for (const auto& row : rows) {
    INFO(row.host);
    const auto refusal = check_origin(kNames, {.host = row.host});
    CHECK(!refusal == row.is_own);
    if (refusal) CHECK(refusal->status == 421);
  }
}

TEST_CASE("the header Origin must name the server as Host does") {
  const struct {
    const char* host;
    const char* origin;
    bool is_own;
  } rows[] = {{"box1:9540", "http://box1:9540", true},
              {"box1:9540", "https://BOX1:9540", true},
              {"box1", "http://box1:80", true},
              {"box1:443", "https://box1", true},
              {"[::1]:9540", "http://[::1]:9540", true},
              {"box1:9540", "http://box1", false},
              {"box1:9540", "http://box1:9541", false},
              {"box1", "https://box1:80", false},
              {"box1:9540", "http://localhost:9540", false},  // another machine's
              {"box1:9540", "http://evil.example", false},
              {"box1:9540", "http://box1:9540.evil.example", false},
              {"box1:9540", "http://box1:9540/", false},
              {"box1:9540", "null", false},
              {"box1:9540", "", false},
              {"box1:9540", "ftp://box1:9540", false},
              {"box1:9540", "chrome-extension://box1:9540", false}};
  for (const auto& row : rows) {
    INFO(row.host << " " << row.origin);
    const auto refusal = check_origin(kNames, {.host = row.host, .origin = row.origin});
    CHECK(!refusal == row.is_own);
    if (refusal) CHECK(refusal->status == 403);
  }
}

TEST_CASE("only HTTP/1.0 may leave Host out, and nobody may send two") {
  CHECK_FALSE(check_origin(kNames, {.is_http_1_0 = true, .host_count = 0}));
  CHECK(check_origin(kNames, {.host_count = 0})->status == 400);
  CHECK(check_origin(kNames, {.host_count = 2, .host = "box1"})->status == 400);
  CHECK(check_origin(kNames, {.is_http_1_0 = true, .host_count = 2, .host = "box1"})->status ==
        400);
  CHECK(check_origin(kNames, {.is_http_1_0 = true, .host = "evil.example"})->status == 421);
  CHECK(
      check_origin(kNames, {.is_http_1_0 = true, .host_count = 0, .origin = "http://a"})->status ==
      403);
}

TEST_CASE("a refusal shows the header without its odd bytes, and not all of a long one") {
  const auto odd = check_origin(kNames, {.host = "a\x01[b]"});
  CHECK(odd->why.starts_with("'a?[b]' (header Host)"));
  const std::string longest(5'000, 'x');
  CHECK(check_origin(kNames, {.host = longest})->why.size() < 400);
}

}  // namespace
}  // namespace pbox::admin
