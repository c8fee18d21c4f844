// Tests which SESSION a worker accepts.
#include <catch2/catch.hpp>
#include <functional>

#include "worker/membership/session.h"

namespace pbox::worker {
namespace {

// Tensors of 20,000 and 28 bytes: three chunks of 8192, and one.
const std::vector<TensorSpec> kTensors = {{.name = "a", .elements = 5000},
                                          {.name = "b", .elements = 7}};

const nic::Endpoint kBox = *nic::parse_endpoint("10.0.0.1", 9541);

proto::Session sound_session() {
  proto::Session session;
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
  const auto spec = parse_session(sound_session(), kTensors, kBox);
  REQUIRE(spec.ok());
  CHECK(spec->epoch == 3);
  CHECK(spec->generation == 4);
  CHECK(spec->fragment_bytes == 1408);
  CHECK(spec->chunk_bytes == 8192);
  CHECK(spec->tag.payload_crc);
  CHECK(spec->chunk_pipeline == std::vector<uint8_t>{0, 1, 0, 1});
}

TEST_CASE("a pipeline has the control connection's address unless it states its own") {
  proto::Session session = sound_session();
  session.mutable_pipelines(0)->set_udp_port(9542);
  session.mutable_pipelines(1)->set_udp_port(9543);
  session.mutable_pipelines(1)->set_address("10.0.1.1");
  session.mutable_pipelines(1)->set_spi(77);
  session.mutable_pipelines(1)->set_credit_bytes(4096);
  const auto spec = parse_session(session, kTensors, kBox);
  REQUIRE(spec.ok());
  CHECK(to_string(spec->pipelines[0].box) == "10.0.0.1:9542");
  CHECK(to_string(spec->pipelines[1].box) == "10.0.1.1:9543");
  CHECK(spec->pipelines[1].spi == 77);
  CHECK(spec->pipelines[1].credit_bytes == 4096);
  session.mutable_pipelines(1)->set_address("box.example");
  const auto unresolved = parse_session(session, kTensors, kBox);
  REQUIRE_FALSE(unresolved.ok());
  CHECK_THAT(unresolved.error().message, Catch::Contains("'box.example'"));
}

TEST_CASE("a SESSION's queue affinities and RSS tables are read, and shared tables stay shared") {
  proto::Session session = sound_session();
  auto& table = *session.add_rss_tables();
  table.set_key("key");
  for (const uint32_t queue : {0, 1, 65535}) table.add_queues(queue);
  for (auto& pipeline : *session.mutable_pipelines()) pipeline.set_affinity(1);
  session.mutable_pipelines(1)->set_queue(1);
  const auto spec = parse_session(session, kTensors, kBox);
  REQUIRE(spec.ok());
  CHECK(spec->pipelines[0].affinity == nic::QueueAffinity::kRssHash);
  CHECK(spec->pipelines[1].queue == 1);
  REQUIRE(spec->pipelines[0].rss != nullptr);
  CHECK(*spec->pipelines[0].rss == nic::RssTable{{'k', 'e', 'y'}, {0, 1, 65535}});
  CHECK(spec->pipelines[1].rss == spec->pipelines[0].rss);

  const auto plain = parse_session(sound_session(), kTensors, kBox);
  REQUIRE(plain.ok());
  CHECK(plain->pipelines[0].affinity == nic::QueueAffinity::kUdpPort);
  CHECK(plain->pipelines[0].rss == nullptr);
}

TEST_CASE("an unknown queue affinity is refused by number, with the remedy") {
  proto::Session session = sound_session();
  session.mutable_pipelines(1)->set_udp_port(9543);
  session.mutable_pipelines(1)->set_affinity(5);
  const auto spec = parse_session(session, kTensors, kBox);
  REQUIRE_FALSE(spec.ok());
  CHECK(spec.error().code == ErrorCode::kVersionMismatch);
  CHECK_THAT(spec.error().message, Catch::Contains("9543") && Catch::Contains("queue affinity 5") &&
                                       Catch::Contains("upgrade libpbox"));
}

TEST_CASE("a SESSION that an exchange could not serve is refused") {
  const std::pair<const char*, std::function<void(proto::Session&)>> cases[] = {
      {"no chunk size", [](auto& session) { session.set_chunk_bytes(0); }},
      // The sum of chunk and fragment bytes would wrap, and 64 fragments would seem to suffice.
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
      {"an RSS table that is not there",
       [](auto& session) { session.mutable_pipelines(1)->set_affinity(1); }},
      {"an RSS table without a key",
       [](auto& session) { session.add_rss_tables()->add_queues(0); }},
      {"an RSS table without queues",
       [](auto& session) { session.add_rss_tables()->set_key("key"); }},
      {"an RSS table with a queue that no NIC has",
       [](auto& session) {
         session.add_rss_tables()->set_key("key");
         session.mutable_rss_tables(0)->add_queues(65536);
       }},
      {"an RSS table over the limit",
       [](auto& session) {
         session.add_rss_tables()->set_key("key");
         session.mutable_rss_tables(0)->mutable_queues()->Resize(limits::kRssTableEntriesMax + 1,
                                                                 0);
       }},
      {"an RSS key over the limit",
       [](auto& session) {
         session.add_rss_tables()->set_key(std::string(limits::kRssKeyBytesMax + 1, 'k'));
         session.mutable_rss_tables(0)->add_queues(0);
       }},
  };
  for (const auto& [what, spoil] : cases) {
    INFO(what);
    proto::Session session = sound_session();
    spoil(session);
    CHECK_FALSE(parse_session(session, kTensors, kBox).ok());
  }
}

}  // namespace pbox::worker
