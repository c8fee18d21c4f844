#include <catch2/catch.hpp>

#include "appliance/cluster/box_record.h"

namespace pbox::cluster {

TEST_CASE("a box's record is read as it was written") {
  const BoxRecord record{.name = "b",
                         .control = "10.0.0.1:9541",
                         .data = {"10.0.0.1:9542", "[fd00::1]:9543"},
                         .capacity_bytes_per_s = 12'500'000'000,
                         .job_memory_bytes = uint64_t{1} << 40,
                         .version = "0.1.0",
                         .protocol_version = 4,
                         .protocol_version_min = 3,
                         .incarnation = "18446744073709551615"};
  CHECK(from_text("b", to_text(record)) == record);
}

TEST_CASE("a record states which control protocols its box talks") {
  // A record as release 0.1.0 writes it.
  const BoxRecord older = from_text("b", R"({"control":"h:1","protocol_version":2})");
  CHECK(older.protocol_version_min == 2);
  CHECK(older.can_serve(0));
  CHECK(older.can_serve(2));
  CHECK_FALSE(older.can_serve(3));
  const BoxRecord newer{.name = "b", .protocol_version = 4, .protocol_version_min = 3};
  CHECK(newer.can_serve(3));
  const BoxRecord too_new{.name = "b", .protocol_version = 5, .protocol_version_min = 4};
  CHECK_FALSE(too_new.can_serve(2));
}

TEST_CASE(
    "a record of another release keeps the known fields, and text that is no record is not fatal") {
  const BoxRecord unknown{.name = "b"};
  CHECK(from_text("b", "") == unknown);
  CHECK(from_text("b", "[1]") == unknown);
  CHECK(from_text("b", R"({"control":7,"data":"x","version":null,"job_memory_bytes":-1})") ==
        unknown);
  const BoxRecord some = from_text("b", R"({"control":"h:1","data":["a",2],"news":{}})");
  CHECK(some.control == "h:1");
  CHECK(some.data == std::vector<std::string>{"a"});
}

}  // namespace pbox::cluster
