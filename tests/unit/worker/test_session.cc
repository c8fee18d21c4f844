// What a worker accepts of a box's SESSION.
#include <catch2/catch.hpp>
#include <functional>

#include "worker/session.h"

namespace pbox::worker {
namespace {

// 20,000 bytes and 28: three chunks of 8192, and one.
const std::vector<TensorSpec> kTensors = {{.name = "a", .elements = 5000},
                                          {.name = "b", .elements = 7}};

control::Session sound_session() {
  control::Session session;
  session.set_epoch(3);
  session.set_generation(4);
  session.set_fragment_bytes(1408);
  session.set_chunk_bytes(8192);
  session.set_payload_crc(true);
  session.add_pipelines();
  session.add_pipelines();
  session.set_chunk_pipeline(std::string("\0\1\0\1", 4));
  return session;
}

}  // namespace

TEST_CASE("a sound SESSION becomes a spec, field by field") {
  const auto spec = parse_session(sound_session(), kTensors);
  REQUIRE(spec.ok());
  CHECK(spec->epoch == 3);
  CHECK(spec->generation == 4);
  CHECK(spec->fragment_bytes == 1408);
  CHECK(spec->chunk_bytes == 8192);
  CHECK(spec->tag.payload_crc);
  CHECK(spec->chunk_pipeline == std::vector<uint8_t>{0, 1, 0, 1});
}

TEST_CASE("a SESSION that the core could not serve is refused") {
  const std::pair<const char*, std::function<void(control::Session&)>> cases[] = {
      {"no chunk size", [](auto& session) { session.set_chunk_bytes(0); }},
      // The sum of chunk and fragment bytes would wrap, and 64 fragments seem enough.
      {"chunks of 4 GiB",
       [](auto& session) {
         session.set_chunk_bytes(UINT32_MAX);
         session.set_chunk_pipeline(std::string(2, '\0'));
       }},
      {"more than 64 fragments", [](auto& session) { session.set_fragment_bytes(127); }},
      {"no fragment size", [](auto& session) { session.set_fragment_bytes(0); }},
      {"fragments over the packet's limit",
       [](auto& session) { session.set_fragment_bytes(limits::kFragmentBytesMax + 1); }},
      {"a chunk too few", [](auto& session) { session.mutable_chunk_pipeline()->pop_back(); }},
      {"a chunk too many", [](auto& session) { *session.mutable_chunk_pipeline() += '\0'; }},
      {"a pipeline that is not there",
       [](auto& session) { session.mutable_chunk_pipeline()->back() = '\2'; }},
      {"no pipelines", [](auto& session) { session.clear_pipelines(); }},
  };
  for (const auto& [what, spoil] : cases) {
    INFO(what);
    control::Session session = sound_session();
    spoil(session);
    CHECK_FALSE(parse_session(session, kTensors).ok());
  }
}

}  // namespace pbox::worker
