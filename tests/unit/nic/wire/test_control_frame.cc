#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "base/limits.h"
#include "nic/wire/control_frame.h"

namespace pbox::wire {
namespace {

proto::WorkerMessage join_of(const std::string& job) {
  proto::WorkerMessage message;
  message.mutable_join()->set_job(job);
  message.mutable_join()->set_world_size(4);
  return message;
}

std::string announce(uint32_t length) {
  return {static_cast<char>(length), static_cast<char>(length >> 8),
          static_cast<char>(length >> 16), static_cast<char>(length >> 24)};
}

}  // namespace

TEST_CASE("a frame starts with its length in little endian") {
  const auto message = join_of("resnet");
  const auto framed = frame(message);
  REQUIRE(framed.ok());
  const auto length = static_cast<uint32_t>(message.ByteSizeLong());
  CHECK(framed->substr(0, 4) == announce(length));
  CHECK(framed->substr(4) == message.SerializeAsString());
}

TEST_CASE(
    "a message is returned whole, as soon as its last byte arrives, wherever the stream is cut") {
  const auto message = join_of("resnet");
  const std::string framed = *frame(message);
  for (size_t cut = 0; cut < framed.size(); ++cut) {
    FrameReader reader;
    reader.append(framed.data(), cut);
    const auto early = reader.next();
    REQUIRE(early.ok());
    REQUIRE_FALSE(early->has_value());
    reader.append(framed.data() + cut, framed.size() - cut);
    const auto body = reader.next();
    REQUIRE(body.ok());
    REQUIRE(body->has_value());
    REQUIRE(**body == message.SerializeAsString());
    REQUIRE_FALSE(reader.next()->has_value());
  }
}

TEST_CASE("several frames in one read are returned in order, and an incomplete one later") {
  const std::string stream = *frame(join_of("a")) + *frame(join_of("b")) + *frame(join_of("c"));
  FrameReader reader;
  reader.append(stream.data(), stream.size() - 1);
  CHECK(**reader.next() == join_of("a").SerializeAsString());
  CHECK(**reader.next() == join_of("b").SerializeAsString());
  CHECK_FALSE(reader.next()->has_value());
  reader.append(stream.data() + stream.size() - 1, 1);
  CHECK(**reader.next() == join_of("c").SerializeAsString());
}

TEST_CASE("an empty message is a valid frame") {
  FrameReader reader;
  const std::string two_empty(8, '\0');
  reader.append(two_empty.data(), two_empty.size());
  for (int count = 0; count < 2; ++count) {
    const auto body = reader.next();
    REQUIRE(body->has_value());
    CHECK((*body)->empty());
  }
  CHECK_FALSE(reader.next()->has_value());
}

TEST_CASE("an announced length above the limit is refused before the body arrives") {
  FrameReader at_limit;
  const std::string allowed = announce(limits::kControlMessageBytesMax);
  at_limit.append(allowed.data(), allowed.size());
  CHECK(at_limit.next().ok());
  for (const uint32_t length : {limits::kControlMessageBytesMax + 1, 0x80000000u, 0xffffffffu}) {
    FrameReader reader;
    const std::string header = announce(length);
    reader.append(header.data(), header.size());
    const auto body = reader.next();
    REQUIRE_FALSE(body.ok());
    CHECK(body.error().code == ErrorCode::kInvalidArgument);
    CHECK_FALSE(reader.next().ok());
  }
}

TEST_CASE("a message at the limit is framed, and a longer one is refused") {
  auto message = join_of(std::string(limits::kControlMessageBytesMax, 'x'));
  const auto refused = frame(message);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code == ErrorCode::kResourceExhausted);
  const size_t excess = message.ByteSizeLong() - limits::kControlMessageBytesMax;
  message.mutable_join()->mutable_job()->resize(limits::kControlMessageBytesMax - excess);
  REQUIRE(message.ByteSizeLong() == limits::kControlMessageBytesMax);
  CHECK(frame(message).ok());
}

}  // namespace pbox::wire
