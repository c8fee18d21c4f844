// Recovery of a lost box, ranks that rejoin, and ranks that the job continues without.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"

namespace pbox::test::membership_recover_test {
namespace {

using Catch::Contains;
using worker::Action;
using Phase = worker::Membership::Phase;
using Kinds = std::vector<Action::Kind>;

const Kinds kHangsUp = {Action::Kind::kDisconnect, Action::Kind::kCloseTransport};
const Error kRefused{ErrorCode::kUnavailable, "cannot reach the box: Connection refused"};

proto::BoxMessage failure(ErrorCode code, const char* text) {
  proto::BoxMessage message;
  message.mutable_failure()->set_code(static_cast<uint32_t>(code));
  message.mutable_failure()->set_message(text);
  return message;
}

proto::BoxMessage heartbeat() {
  proto::BoxMessage message;
  message.mutable_heartbeat();
  return message;
}

struct Buffers {
  std::vector<float> weights = std::vector<float>(2048, 1.0f);
  std::vector<float> bias = std::vector<float>(7, 1.0f);

  void start(worker::Membership& membership) {
    auto* large = reinterpret_cast<std::byte*>(weights.data());
    auto* small = reinterpret_cast<std::byte*>(bias.data());
    membership.start({.tensor = 0, .input = large, .output = large});
    membership.start({.tensor = 1, .input = small, .output = small});
  }
};

}  // namespace

TEST_CASE("a lost box is searched for with back-off while operations stay pending") {
  Member member;
  member.join();
  Buffers buffers;
  buffers.start(member.membership);
  member.membership.exchange()->to_send(0, member.now_ns);
  member.lose_box();
  REQUIRE(member.membership.loss());
  CHECK(member.membership.loss()->since_ns == member.now_ns);
  CHECK(member.membership.loss()->reason == "box box-7:9541 closed the connection");
  CHECK(member.membership.exchange()->busy(0));
  CHECK(member.membership.exchange()->to_send(0, member.now_ns).empty());
  uint64_t before_ns = member.now_ns;
  for (int attempt = 0; attempt < 10; ++attempt) {
    REQUIRE(member.advance());
    REQUIRE(member.act() == Kinds{Action::Kind::kConnect});
    const uint64_t waited_ns = member.now_ns - before_ns;
    const uint64_t middle_ns = std::min<uint64_t>(50'000'000ull << attempt, kSecondNs);
    CHECK(waited_ns >= middle_ns / 2);
    CHECK(waited_ns <= middle_ns + middle_ns / 2);
    before_ns = member.now_ns;
    member.membership.on_disconnected(kRefused, member.now_ns);
    REQUIRE(member.act() == kHangsUp);
  }
  CHECK(member.membership.phase() == Phase::kRecovering);
}

TEST_CASE("a worker that resumes states its identity, its session and its consumed rounds") {
  auto options = Member::default_options();
  options.incarnation = 77;
  options.on_worker_lost = worker::LostPolicy::kPartial;
  Member member(options);
  member.join();
  member.membership.ask_barrier();
  member.act();
  member.lose_box();
  member.ask_join_again();
  REQUIRE(member.actions.size() == 2);
  const proto::Join& join = member.actions[0].message.join();
  CHECK(join.resumes());
  CHECK_FALSE(join.rejoins());
  CHECK(join.incarnation() == 77);
  CHECK(join.epoch() == 3);
  CHECK(join.generation() == 4);
  CHECK(join.barrier_sequence() == 1);
  CHECK(join.chunk_bytes() == 4096);
  CHECK(join.on_worker_lost() == 1);
  CHECK(join.recovery() == 0);
  const proto::RoundMap& rounds = member.actions[1].message.rounds();
  CHECK(rounds.first_chunk() == 0);
  CHECK(std::vector<uint32_t>(rounds.rounds().begin(), rounds.rounds().end()) ==
        std::vector<uint32_t>{0, 0, 0});
  CHECK(rounds.last());
}

TEST_CASE("no worker reconnects while the box waits for ranks that may not come back") {
  auto options = Member::default_options();
  options.join_timeout_ms = 5'000;
  options.lost_timeout_ms = 30'000;
  options.recover_timeout_ms = 300'000;
  Member member(options);
  member.join();
  member.lose_box();
  member.ask_join_again();
  const uint64_t asked_ns = member.now_ns;
  while (member.act() != kHangsUp && member.now_ns < asked_ns + 100 * kSecondNs) {
    member.now_ns += kSecondNs;
    member.deliver(heartbeat());
    member.membership.on_time(member.now_ns);
  }
  // 5 s as usual, 30 s for lost ranks, and 5 s until a silent rank counts as lost.
  CHECK(member.now_ns - asked_ns > 40 * kSecondNs);
  CHECK(member.now_ns - asked_ns < 50 * kSecondNs);
}

TEST_CASE("a rank that rejoined and has consumed nothing says that it cannot restore a result") {
  auto options = Member::default_options();
  options.rejoin = true;
  Member member(options);
  member.ask_join();
  auto session = Member::session();
  session.mutable_session()->set_has_rounds(true);
  session.mutable_session()->add_absent_ranks(1);
  member.deliver(session);
  member.deliver(Member::round_map({7, 7, 0}));
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  member.lose_box();
  member.ask_join_again();
  REQUIRE(member.actions.size() == 2);
  const proto::Join& join = member.actions[0].message.join();
  CHECK(std::vector<uint32_t>(join.absent_ranks().begin(), join.absent_ranks().end()) ==
        std::vector<uint32_t>{1});
  const proto::RoundMap& rounds = member.actions[1].message.rounds();
  CHECK(std::vector<uint32_t>(rounds.rounds().begin(), rounds.rounds().end()) ==
        std::vector<uint32_t>{7, 7, 0});
  CHECK(std::vector<uint32_t>(rounds.lacks().begin(), rounds.lacks().end()) ==
        std::vector<uint32_t>{0, 1});
}

TEST_CASE("a first JOIN neither resumes nor states rounds, and rejoins only if asked to") {
  for (const bool rejoins : {false, true}) {
    auto options = Member::default_options();
    options.rejoin = rejoins;
    options.recovery = worker::Recovery::kNone;
    Member member(options);
    member.ask_join();
    CHECK_FALSE(member.message().join().resumes());
    CHECK(member.message().join().rejoins() == rejoins);
    CHECK(member.message().join().recovery() == 1);
  }
}

TEST_CASE("a resumed session uses the new epoch and repeats unconfirmed requests") {
  Member member;
  member.join();
  Buffers buffers;
  buffers.start(member.membership);
  member.membership.ask_barrier();
  member.membership.ask_barrier();
  member.membership.ask_learning_rate(0.5f);
  member.act();
  proto::BoxMessage released;
  released.mutable_barrier_released()->set_sequence(1);
  member.deliver(released);
  member.lose_box();
  member.membership.ask_learning_rate(0.25f);
  CHECK(member.act().empty());
  member.ask_join_again();
  member.resume(9, {0, 0, 0});
  CHECK(member.membership.phase() == Phase::kRunning);
  CHECK_FALSE(member.membership.loss());
  CHECK(member.membership.history().recoveries == 1);
  REQUIRE(member.act() == Kinds(3, Action::Kind::kSend));
  CHECK(member.actions[0].message.barrier().sequence() == 2);
  CHECK(member.actions[1].message.set_learning_rate().sequence() == 1);
  CHECK(member.actions[1].message.set_learning_rate().learning_rate() == 0.5f);
  CHECK(member.actions[2].message.set_learning_rate().sequence() == 2);
  const auto packets = member.membership.exchange()->to_send(0, member.now_ns);
  REQUIRE_FALSE(packets.empty());
  CHECK(packets[0].header.epoch == 9);
}

TEST_CASE("requests that the box has confirmed meanwhile are not repeated") {
  Member member;
  member.join();
  member.membership.ask_barrier();
  member.act();
  member.lose_box();
  member.ask_join_again();
  auto session = Member::session(9);
  session.mutable_session()->set_has_rounds(true);
  session.mutable_session()->set_barrier_released(1);
  member.deliver(session);
  member.deliver(Member::round_map({0, 0, 0}));
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  CHECK(member.membership.phase() == Phase::kRunning);
  CHECK(member.membership.requests().barriers_released() == 1);
  CHECK(member.act().empty());
}

TEST_CASE("rounds arrive in pieces, in order, and must match the number of chunks") {
  const auto piece = [](uint32_t first, const std::vector<uint32_t>& rounds, bool last) {
    auto message = Member::round_map(rounds);
    message.mutable_rounds()->set_first_chunk(first);
    message.mutable_rounds()->set_last(last);
    return message;
  };
  const auto begin = [](Member& member) {
    auto session = Member::session();
    session.mutable_session()->set_has_rounds(true);
    member.ask_join();
    member.deliver(session);
    CHECK(member.act().empty());
  };
  {
    Member member;
    begin(member);
    member.deliver(piece(0, {7, 6}, false));
    CHECK(member.act().empty());
    member.deliver(piece(2, {5}, true));
    REQUIRE(member.act() == Kinds{Action::Kind::kOpenTransport});
    CHECK(member.actions[0].session.open_rounds == std::vector<uint32_t>{7, 6, 5});
    member.membership.on_transport_open(Member::facts(), member.now_ns);
    CHECK(member.membership.exchange()->round(0) == 6);
    CHECK(member.membership.exchange()->round(1) == 5);
  }
  const std::pair<const char*, std::vector<proto::BoxMessage>> wrong[] = {
      {"a gap", {piece(1, {6, 5}, true)}},
      {"too many", {piece(0, {7, 6, 5, 4}, true)}},
      {"too few", {piece(0, {7, 6}, true)}},
      {"no end", {piece(0, {7, 6, 5}, false)}},
      {"twice the same", {piece(0, {7, 6}, false), piece(0, {7}, true)}},
  };
  for (const auto& [what, messages] : wrong) {
    INFO(what);
    Member member;
    begin(member);
    for (const auto& message : messages) member.deliver(message);
    CHECK(member.membership.phase() == Phase::kFailed);
    CHECK(member.act() == kHangsUp);
  }
}

TEST_CASE("a box that is not found in time is an error with duration and reason") {
  auto options = Member::default_options();
  options.recover_timeout_ms = 3'000;
  Member member(options);
  member.join();
  const uint64_t lost_ns = member.now_ns;
  member.lose_box();
  while (member.membership.phase() == Phase::kRecovering) {
    REQUIRE(member.advance());
    REQUIRE(member.now_ns <= lost_ns + 3 * kSecondNs);
    if (member.act() == Kinds{Action::Kind::kConnect}) {
      member.membership.on_disconnected(kRefused, member.now_ns);
    }
  }
  CHECK(member.now_ns == lost_ns + 3 * kSecondNs);
  CHECK(member.membership.failure()->code == ErrorCode::kBoxLost);
  CHECK_THAT(member.membership.failure()->message,
             Contains("box box-7:9541 was lost 3.0 s ago") && Contains("closed the connection") &&
                 Contains("within 3000 ms") && Contains("Connection refused"));
}

TEST_CASE("a box that was found and waits for other ranks is waited for, and the error says so") {
  auto options = Member::default_options();
  options.recover_timeout_ms = 20'000;
  Member member(options);
  member.join();
  member.lose_box();
  member.ask_join_again();
  while (member.membership.phase() == Phase::kRecovering) {
    member.advance();
    for (const auto& action : member.membership.take_actions()) {
      if (action.kind == Action::Kind::kSend) member.deliver(heartbeat());
    }
  }
  CHECK_THAT(member.membership.failure()->message,
             Contains("waits for the other ranks to come back"));
}

TEST_CASE("a box that becomes silent while it is rejoined is tried again") {
  Member member;
  member.join();
  member.lose_box();
  member.ask_join_again();
  const uint64_t start_ns = member.now_ns;
  Kinds kinds;
  while (kinds != kHangsUp) {
    REQUIRE(member.advance());
    REQUIRE(member.now_ns < start_ns + 6 * kSecondNs);
    kinds = member.act();
  }
  CHECK(member.now_ns > start_ns + 5 * kSecondNs);  // dead_after_ms
  member.ask_join_again();
}

TEST_CASE("a transient refusal is retried, any other one ends the recovery") {
  for (const auto code : {ErrorCode::kUnavailable, ErrorCode::kResourceExhausted}) {
    Member member;
    member.join();
    member.lose_box();
    member.ask_join_again();
    member.deliver(failure(code, "not yet"));
    CHECK(member.act() == kHangsUp);
    REQUIRE(member.membership.phase() == Phase::kRecovering);
    member.ask_join_again();
    member.resume(9, {0, 0, 0});
    CHECK(member.membership.phase() == Phase::kRunning);
  }
  Member member;
  member.join();
  member.lose_box();
  member.ask_join_again();
  member.deliver(failure(ErrorCode::kWorkerLost, "it was left behind"));
  CHECK(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->message == "it was left behind");
}

TEST_CASE("a transport that does not open and a connection lost meanwhile are retried") {
  Member member;
  member.join();
  member.lose_box();
  member.ask_join_again();
  member.deliver(Member::session(9));
  member.act();
  member.membership.on_transport_open(kRefused, member.now_ns);
  CHECK(member.act() == kHangsUp);
  member.ask_join_again();
  member.deliver(Member::session(9));
  member.act();
  member.membership.on_disconnected(kRefused, member.now_ns);
  CHECK(member.act() == kHangsUp);
  member.membership.on_transport_open(Member::facts(), member.now_ns);  // too late
  CHECK(member.membership.phase() == Phase::kRecovering);
  CHECK(member.act().empty());
}

TEST_CASE("a box whose rounds are too far from this worker's ends it with an error") {
  Member member;
  member.join();
  member.lose_box();
  member.ask_join_again();
  member.resume(9, {2, 0, 0});
  CHECK(member.membership.phase() == Phase::kFailed);
  CHECK(member.membership.failure()->code == ErrorCode::kWorkerLost);
  CHECK_THAT(member.membership.failure()->message, Contains("left behind"));
}

TEST_CASE("a worker may leave while the box is lost") {
  Member member;
  member.join();
  member.lose_box();
  member.membership.leave();
  CHECK(member.act() == kHangsUp);
  CHECK(member.membership.phase() == Phase::kLeft);
  CHECK(member.membership.next_deadline_ns() == UINT64_MAX);
}

TEST_CASE("a copy of the model exists only with recovery copy") {
  for (const bool copies : {true, false}) {
    for (const bool optimizes : {true, false}) {
      auto options = Member::default_options();
      options.recovery = copies ? worker::Recovery::kCopy : worker::Recovery::kNone;
      options.optimize = optimizes;
      Member member(options);
      member.join();
      const uint64_t bytes = member.membership.exchange()->statistics().shadow_bytes;
      const uint64_t last = 7 * sizeof(float);  // all tensors before it fill whole cache lines
      const uint64_t one = 8192 + last;
      const uint64_t two = 2 * 8192 + kCacheLineBytes + last;
      CHECK(bytes == (!copies ? 0 : optimizes ? two : one));
    }
  }
}

TEST_CASE("a rank that rejoins continues the barrier numbers of the job and fetches weights") {
  auto options = Member::default_options();
  options.rejoin = options.optimize = true;
  Member member(options);
  member.ask_join();
  auto session = Member::session();
  session.mutable_session()->set_has_rounds(true);
  session.mutable_session()->set_barrier_released(5);
  member.deliver(session);
  member.deliver(Member::round_map({7, 7, 0}));
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  member.membership.ask_barrier();
  member.act();
  CHECK(member.message().barrier().sequence() == 6);
  proto::BoxMessage released;
  released.mutable_barrier_released()->set_sequence(6);
  member.deliver(released);
  CHECK(member.membership.requests().barriers_released() == 1);
  Buffers buffers;
  auto* large = reinterpret_cast<std::byte*>(buffers.weights.data());
  auto* small = reinterpret_cast<std::byte*>(buffers.bias.data());
  member.membership.start({.tensor = 0, .input = large, .output = large, .initial_weights = true});
  member.membership.start({.tensor = 1,
                           .input = small,
                           .output = small,
                           .initial_weights = true});  // in round 0 they are pushed as usual
  const auto packets = member.membership.exchange()->to_send(0, member.now_ns);
  REQUIRE(packets.size() == 2);
  CHECK(packets[0].header.type() == wire::PacketType::kPull);
  CHECK(packets[0].header.round == 6);
  CHECK(packets[1].header.type() == wire::PacketType::kPush);
}

TEST_CASE("a rank that rejoins retries until the box has evicted its predecessor, or time is up") {
  auto options = Member::default_options();
  options.rejoin = true;
  options.join_timeout_ms = 5'000;
  for (const bool is_freed : {true, false}) {
    Member member(options);
    member.ask_join();
    const uint64_t start_ns = member.now_ns;
    const auto taken = failure(ErrorCode::kAlreadyExists, "rank 0 still shows signs of life");
    for (int attempt = 0; attempt < 3; ++attempt) {
      member.deliver(taken);
      REQUIRE(member.act() == kHangsUp);
      member.ask_join_again();
      CHECK_FALSE(member.message().join().resumes());
    }
    if (is_freed) {
      member.resume(3, {7, 7, 7});
      CHECK(member.membership.phase() == Phase::kRunning);
      CHECK(member.membership.history().recoveries == 0);
      continue;
    }
    member.now_ns = start_ns + 5 * kSecondNs;
    member.deliver(taken);
    CHECK(member.membership.phase() == Phase::kFailed);
    CHECK_THAT(member.membership.failure()->message, Contains("signs of life"));
  }
  Member other;
  other.ask_join();
  other.deliver(failure(ErrorCode::kAlreadyExists, "rank 0 is taken"));
  CHECK(other.membership.phase() == Phase::kFailed);
}

TEST_CASE("a new generation is adopted together with its absent ranks") {
  Member member;
  member.join();
  CHECK(member.membership.absent_ranks().empty());
  proto::BoxMessage message;
  message.mutable_membership()->set_generation(5);
  message.mutable_membership()->add_absent_ranks(1);
  member.deliver(message);
  CHECK(member.membership.absent_ranks() == std::vector<uint32_t>{1});
  Buffers buffers;
  buffers.start(member.membership);
  const auto packets = member.membership.exchange()->to_send(0, member.now_ns);
  REQUIRE_FALSE(packets.empty());
  CHECK(packets[0].header.generation == 5);
  member.lose_box();
  member.ask_join_again();
  CHECK(member.actions[0].message.join().generation() == 5);
}

TEST_CASE("a generation that changes while the transport opens applies from the session's start") {
  Member member;
  member.ask_join();
  member.deliver(Member::session());
  proto::BoxMessage message;
  message.mutable_membership()->set_generation(5);
  member.deliver(message);
  member.act();
  member.membership.on_transport_open(Member::facts(), member.now_ns);
  Buffers buffers;
  buffers.start(member.membership);
  CHECK(member.membership.exchange()->to_send(0, member.now_ns)[0].header.generation == 5);
}

TEST_CASE("the same events at the same times cause the same actions") {
  const auto retry_times = [](uint64_t seed) {
    auto options = Member::default_options();
    options.seed = seed;
    Member member(options);
    member.join();
    member.lose_box();
    std::vector<uint64_t> times;
    for (int attempt = 0; attempt < 5; ++attempt) {
      member.advance();
      times.push_back(member.now_ns);
      member.membership.on_disconnected(kRefused, member.now_ns);
    }
    return times;
  };
  CHECK(retry_times(3) == retry_times(3));
  CHECK(retry_times(3) != retry_times(4));
}

}  // namespace pbox::test::membership_recover_test
