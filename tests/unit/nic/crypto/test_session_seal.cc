// The seals of both ends of a session: numbers, replays, updates of keys.
#include <algorithm>
#include <set>

#include "nic/seal/session_seal.h"
#include "tests/golden/sealed_packets.h"
#include "tests/support/hexadecimal.h"
#include "tests/unit/nic/crypto/seal_pair.h"

namespace pbox::test::session_seal_test {
namespace {

using crypto::Library;
using crypto::Suite;
using Bytes = std::vector<std::byte>;

constexpr SealPairOptions kSuites[] = {{.suite = Suite::kGmac256}, {.suite = Suite::kGcm256}};
constexpr uint64_t kTickNs = kNanosPerSecond;

Bytes bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

wire::Header push_header() {
  wire::Header header;
  header.set_type(wire::PacketType::kPush);
  header.spi = 0x81020304;
  return header;
}

// A packet of the worker with a payload of its own.
struct Made {
  Bytes payload;
  Bytes packet;
};
Made make(SealPair& pair, uint8_t value) {
  Made made;
  made.payload.assign(100, std::byte(value));
  made.packet = sealed_bytes(pair.worker, push_header(), made.payload);
  return made;
}

uint8_t flags_of(const Bytes& packet) {
  return static_cast<uint8_t>(packet[offsetof(wire::Header, flags)]);
}

}  // namespace

TEST_CASE("sealed packets are byte for byte those that another implementation makes") {
  size_t count = 0;
  for (const Library library : {Library::kFastest, Library::kOpenSsl}) {
    for (const Suite suite : {Suite::kGmac256, Suite::kGcm256}) {
      for (const bool to_worker : {false, true}) {
        SealPair pair({.suite = suite,
                       .pipeline = golden::kSealedPipeline,
                       .spi = golden::kSealedSpi,
                       .updates = {.packets = 4},
                       .library = library});
        for (const golden::SealedPacket& golden : golden::kSealedPackets) {
          if (golden.encrypts != (suite == Suite::kGcm256) || golden.to_worker != to_worker)
            continue;
          INFO("packet " << count++);
          const Bytes wanted = bytes_of(from_hexadecimal(golden.hex));
          seal::SessionSeal& sender = to_worker ? pair.box : pair.worker;
          seal::SessionSeal& receiver = to_worker ? pair.worker : pair.box;
          wire::Header header;
          std::memcpy(&header, wanted.data(), sizeof(header));
          CHECK(header.packet_number == sender.next_number());
          if (!to_worker) REQUIRE(opens(pair.worker, sealed_bytes(pair.box, push_header(), {})));
          Bytes payload(header.payload_bytes);
          for (size_t index = 0; index < payload.size(); ++index) payload[index] = std::byte(index);
          CHECK(sealed_bytes(sender, header, payload) == wanted);
          CHECK(sender.updates_sent() == golden.updates);
          Bytes opened;
          CHECK(opens(receiver, wanted, &opened));
          CHECK(opened == payload);
          CHECK(receiver.updates_received() == golden.updates);
          if (to_worker) REQUIRE(opens(pair.box, sealed_bytes(pair.worker, push_header(), {})));
        }
      }
    }
  }
  CHECK(count == 2 * std::size(golden::kSealedPackets));
}

TEST_CASE("a packet opens once, at the other end of its session only, and shows no payload") {
  for (const SealPairOptions& options : kSuites) {
    SealPair pair(options);
    const Made made = make(pair, 42);
    const bool shows = std::search(made.packet.begin(), made.packet.end(), made.payload.begin(),
                                   made.payload.end()) != made.packet.end();
    CHECK(shows == (options.suite == Suite::kGmac256));
    CHECK_FALSE(opens(pair.worker, made.packet));
    const SealPairOptions strangers[] = {
        {.suite = options.suite, .pipeline = 4},
        {.suite = options.suite, .spi = 0x81020305},
        {.suite = options.suite, .secret = 1},
        {.suite = options.suite == Suite::kGcm256 ? Suite::kGmac256 : Suite::kGcm256}};
    for (const SealPairOptions& other : strangers) {
      SealPair stranger(other);
      CHECK_FALSE(opens(stranger.box, made.packet));
    }
    Bytes opened;
    CHECK(opens(pair.box, made.packet, &opened));
    CHECK(opened == made.payload);
    CHECK_FALSE(opens(pair.box, made.packet));
  }
}

TEST_CASE("a packet in which any bit differs does not open, and the real one still does") {
  for (const SealPairOptions& options : kSuites) {
    SealPair pair(options);
    const Made made = make(pair, 7);
    for (size_t bit = 0; bit < 8 * made.packet.size(); ++bit) {
      Bytes changed = made.packet;
      changed[bit / 8] ^= std::byte(1 << bit % 8);
      INFO("bit " << bit);
      REQUIRE_FALSE(opens(pair.box, changed));
    }
    CHECK(pair.box.updates_received() == 0);
    CHECK(opens(pair.box, made.packet));
  }
}

TEST_CASE("packets open in any order within the window of numbers, and not behind it") {
  SealPair pair;
  std::vector<Bytes> packets;
  for (uint64_t index = 0; index < seal::ReplayWindow::kPackets + 2; ++index) {
    packets.push_back(make(pair, 1).packet);
  }
  CHECK(opens(pair.box, packets.back()));
  CHECK_FALSE(opens(pair.box, packets[1]));
  CHECK(opens(pair.box, packets[2]));
  for (size_t index = 3; index + 1 < packets.size(); ++index)
    REQUIRE(opens(pair.box, packets[index]));
  for (const Bytes& packet : packets) REQUIRE_FALSE(opens(pair.box, packet));
}

TEST_CASE("the box updates keys after a number of packets, whatever is lost or overtaken") {
  for (SealPairOptions options : kSuites) {
    options.updates.packets = 10;
    SealPair pair(options);
    std::vector<Bytes> all;
    for (uint64_t turn = 0; turn < 10; ++turn) {
      std::vector<Made> made;
      for (uint8_t index = 0; index < 10; ++index) {
        made.push_back({Bytes(100, std::byte(index)), {}});
        made.back().packet = sealed_bytes(pair.box, push_header(), made.back().payload);
      }
      CHECK(pair.box.updates_sent() == turn);
      for (size_t index = 0; index + 1 < made.size(); index += 2) {
        std::swap(made[index], made[index + 1]);
      }
      Bytes opened;
      for (size_t index = 0; index < made.size(); ++index) {
        all.push_back(made[index].packet);
        if (index % 3 == 2) continue;
        INFO("turn " << turn << " packet " << index);
        REQUIRE(opens(pair.worker, made[index].packet, &opened));
        REQUIRE(opened == made[index].payload);
      }
      CHECK(pair.worker.updates_received() == turn);
      CHECK(pair.worker.updates_sent() == turn);
      static_cast<void>(make(pair, 1));  // lost
      REQUIRE(opens(pair.box, make(pair, 1).packet));
      CHECK(pair.box.updates_received() == turn);
    }
    for (const Bytes& packet : all) opens(pair.worker, packet);
    for (const Bytes& packet : all) REQUIRE_FALSE(opens(pair.worker, packet));
  }
}

TEST_CASE("the box begins no further update before the worker has followed") {
  SealPair pair({.updates = {.packets = 5}});
  std::vector<Bytes> packets;
  for (int index = 0; index < 100; ++index) {
    packets.push_back(sealed_bytes(pair.box, push_header(), {}));
  }
  CHECK(pair.box.updates_sent() == 1);
  const Bytes before = make(pair, 1).packet;
  CHECK(opens(pair.worker, packets.back()));  // all others are lost
  CHECK(opens(pair.box, before));             // does not confirm the update
  static_cast<void>(sealed_bytes(pair.box, push_header(), {}));
  CHECK(pair.box.updates_sent() == 1);
  CHECK(opens(pair.box, make(pair, 1).packet));
  const Bytes next = sealed_bytes(pair.box, push_header(), {});
  CHECK(pair.box.updates_sent() == 2);
  CHECK(opens(pair.worker, next));
}

TEST_CASE("keys are updated by what the box receives too, and the worker never begins") {
  SealPair pair({.updates = {.packets = 5}});
  for (int index = 0; index < 5; ++index) {
    REQUIRE(opens(pair.box, make(pair, 1).packet));
    CHECK(pair.worker.updates_sent() == 0);
  }
  CHECK(opens(pair.worker, sealed_bytes(pair.box, push_header(), {})));
  CHECK(pair.box.updates_sent() == 1);
  CHECK(pair.worker.updates_sent() == 1);
  CHECK(opens(pair.box, make(pair, 1).packet));
}

TEST_CASE("a packet with next keys does not open at the box unless the box has begun an update") {
  SealPair pair({.updates = {.packets = 5}});
  const SealPairOptions early({.updates = {.packets = 1}});
  seal::SessionSeal box_of_early = make_seal(early, crypto::End::kBox, pair.pages);
  static_cast<void>(sealed_bytes(box_of_early, push_header(), {}));
  const Bytes update = sealed_bytes(box_of_early, push_header(), {});
  seal::SessionSeal forward = make_seal(early, crypto::End::kWorker, pair.pages);
  REQUIRE(opens(forward, update));
  REQUIRE(forward.updates_sent() == 1);
  REQUIRE(opens(pair.box, make(pair, 1).packet));
  static_cast<void>(sealed_bytes(forward, push_header(), {}));
  const Bytes packet = sealed_bytes(forward, push_header(), {});
  CHECK_FALSE(opens(pair.box, packet));
  CHECK(pair.box.updates_received() == 0);
  CHECK(pair.box.updates_sent() == 0);
  while (pair.box.updates_sent() == 0) static_cast<void>(sealed_bytes(pair.box, push_header(), {}));
  CHECK(opens(pair.box, packet));
  CHECK(pair.box.updates_received() == 1);
  CHECK(pair.box.updates_sent() == 1);
}

TEST_CASE("numbers that a worker skips bring about no update") {
  SealPair pair({.updates = {.packets = 5}});
  for (int index = 0; index < 100; ++index) static_cast<void>(make(pair, 1));  // not sent
  REQUIRE(opens(pair.box, make(pair, 1).packet));
  static_cast<void>(sealed_bytes(pair.box, push_header(), {}));
  CHECK(pair.box.updates_sent() == 0);
}

TEST_CASE("no two packets have the same key and nonce, and the phase alternates") {
  SealPair pair({.updates = {.packets = 5}});
  std::set<Bytes> tags;
  for (int index = 0; index < 40; ++index) {
    const Bytes packet = sealed_bytes(pair.box, push_header(), {});
    CHECK((flags_of(packet) & wire::flag::kKeyPhase) ==
          (index / 5 % 2 == 1 ? wire::flag::kKeyPhase : 0));
    tags.insert({packet.end() - limits::kTagBytes, packet.end()});
    REQUIRE(opens(pair.worker, packet));
    REQUIRE(opens(pair.box, make(pair, 3).packet));
  }
  CHECK(tags.size() == 40);
  CHECK(pair.box.next_number() == 41);
}

TEST_CASE("keys are updated by time too") {
  SealPair pair({.updates = {.packets = 1000, .time_ns = 10 * kTickNs}});
  const auto send = [&] { return sealed_bytes(pair.box, push_header(), {}); };
  uint64_t now_ns = 5 * kTickNs;
  pair.box.tick(now_ns);
  for (int tick = 0; tick < 9; ++tick) pair.box.tick(now_ns += kTickNs);
  CHECK(opens(pair.worker, send()));
  CHECK(pair.worker.updates_received() == 0);
  pair.box.tick(now_ns += kTickNs);
  CHECK(opens(pair.worker, send()));
  CHECK(pair.worker.updates_received() == 1);
  CHECK(opens(pair.box, make(pair, 1).packet));
  for (int tick = 0; tick < 9; ++tick) pair.box.tick(now_ns += kTickNs);
  static_cast<void>(send());
  CHECK(pair.box.updates_sent() == 1);
}

TEST_CASE("packets of the keys before open for a while, and no longer") {
  SealPair pair({.updates = {.packets = 3}});
  const auto send = [&] { return sealed_bytes(pair.box, push_header(), {}); };
  std::vector<Bytes> old;
  for (int index = 0; index < 3; ++index) old.push_back(send());
  const Bytes next = send();
  REQUIRE(opens(pair.worker, old[0]));
  REQUIRE(opens(pair.worker, next));
  CHECK(pair.worker.updates_received() == 1);
  uint64_t now_ns = kTickNs;
  pair.worker.tick(now_ns);
  CHECK(opens(pair.worker, old[1]));
  pair.worker.tick(now_ns += kTickNs / 2);  // too early to count
  pair.worker.tick(now_ns += kTickNs / 2);
  CHECK_FALSE(opens(pair.worker, old[2]));
  CHECK(opens(pair.worker, send()));
}

TEST_CASE("a stranger's packet of the other phase updates nothing") {
  SealPair pair, stranger({.secret = 9, .updates = {.packets = 1}});
  static_cast<void>(sealed_bytes(stranger.box, push_header(), {}));
  const Bytes packet = sealed_bytes(stranger.box, push_header(), {});
  REQUIRE((flags_of(packet) & wire::flag::kKeyPhase) != 0);
  CHECK_FALSE(opens(pair.worker, packet));
  CHECK(pair.worker.updates_received() == 0);
  CHECK(opens(pair.worker, sealed_bytes(pair.box, push_header(), {})));
}

TEST_CASE("without keys a packet has a checksum, and none of the flags of keys") {
  seal::SessionSeal worker, box;
  const Bytes payload(8, std::byte{1});
  Bytes packet = sealed_bytes(worker, push_header(), payload);
  CHECK(flags_of(packet) == 0);
  CHECK(opens(box, packet));
  CHECK(opens(box, packet));  // the protocol's own rounds and masks detect duplicates
  SealPair pair;
  CHECK_FALSE(opens(pair.box, packet));
  CHECK_FALSE(opens(box, make(pair, 1).packet));
}

TEST_CASE("a closed seal opens nothing, with or without keys") {
  seal::SessionSeal closed = seal::SessionSeal::closed();
  CHECK(closed.has_keys());
  seal::SessionSeal plain;
  SealPair pair;
  CHECK_FALSE(opens(closed, sealed_bytes(plain, push_header(), Bytes(8))));
  CHECK_FALSE(opens(closed, make(pair, 1).packet));
}

}  // namespace pbox::test::session_seal_test
