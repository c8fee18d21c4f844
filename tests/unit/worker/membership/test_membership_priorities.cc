// Tests which ranks learn priorities, and when they apply.
#include <catch2/catch.hpp>

#include "tests/unit/worker/membership/member.h"

namespace pbox::test::membership_priorities_test {
namespace {

using Policy = wire::PriorityPolicy;
using List = std::vector<int32_t>;

worker::MembershipOptions learning(uint32_t rank, bool optimize = false) {
  auto options = Member::default_options();
  options.rank = rank;
  options.optimize = optimize;
  options.priority_policy = Policy::kForwardOrder;
  return options;
}

proto::BoxMessage told(Policy policy, const List& by_tensor = {}) {
  proto::BoxMessage message;
  message.mutable_set_priorities()->set_policy(static_cast<uint32_t>(policy));
  message.mutable_set_priorities()->mutable_by_tensor()->Add(by_tensor.begin(), by_tensor.end());
  return message;
}

List by_tensor(const proto::SetPriorities& priorities) {
  return {priorities.by_tensor().begin(), priorities.by_tensor().end()};
}

// Buffers for a member's tensors: "weights" with chunks 0 and 1, and "bias" with chunk 2.
struct Gradients {
  std::vector<float> values[2] = {std::vector<float>(2048), std::vector<float>(7)};
  void start(Member& member, uint32_t tensor, bool initial = false) {
    auto* data = reinterpret_cast<std::byte*>(values[tensor].data());
    member.membership.start(
        {.tensor = tensor, .input = data, .output = data, .initial_weights = initial});
  }
};

// Returns the order in which pipeline 0 sends its chunks, 0 and 2.
std::vector<uint32_t> order(Member& member) {
  std::vector<uint32_t> chunks;
  for (const auto& packet : member.membership.exchange()->to_send(0, member.now_ns)) {
    if (chunks.empty() || chunks.back() != packet.header.chunk) {
      chunks.push_back(packet.header.chunk);
    }
  }
  return chunks;
}

}  // namespace

TEST_CASE("JOIN states the priority policy and the delivery") {
  auto options = learning(0);
  options.delivery = wire::Delivery::kPull;
  Member member(options);
  member.ask_join();
  CHECK(member.message().join().priority_policy() == 1);
  CHECK(member.message().join().delivery() == 1);
}

TEST_CASE("rank 0 learns the order of the first round and asks the box to set it") {
  for (const uint32_t rank : {0u, 1u}) {
    Member member(learning(rank));
    member.join();
    Gradients gradients;
    gradients.start(member, 1);
    gradients.start(member, 0);
    member.act();
    if (rank != 0) {
      CHECK(member.actions.empty());
      continue;
    }
    CHECK(member.message().set_priorities().policy() == 1);
    CHECK(by_tensor(member.message().set_priorities()) == List{2, 1});
  }
}

TEST_CASE("in mode optimize the order is not learned from the initial weights") {
  Member member(learning(0, true));
  member.join();
  Gradients gradients;
  gradients.start(member, 1, true);
  gradients.start(member, 0, true);
  CHECK(member.act().empty());
}

TEST_CASE("priorities apply to operations started after the box has sent them") {
  Member member;
  member.join();
  Gradients gradients;
  gradients.start(member, 0);
  gradients.start(member, 1);
  CHECK(order(member) == std::vector<uint32_t>{0, 2});
  for (const bool is_told : {false, true}) {
    Member other;
    other.join();
    other.membership.ask_priorities(Policy::kExplicit, List{1, 2});
    other.act();
    CHECK(by_tensor(other.message().set_priorities()) == List{1, 2});
    if (is_told) other.deliver(told(Policy::kExplicit, {1, 2}));
    gradients.start(other, 0);
    gradients.start(other, 1);
    CHECK(order(other) == (is_told ? std::vector<uint32_t>{2, 0} : std::vector<uint32_t>{0, 2}));
  }
}

TEST_CASE("forward order is learned again when the box says so, from the next complete round") {
  Member member;
  member.join();
  Gradients gradients;
  gradients.start(member, 0);
  member.deliver(told(Policy::kForwardOrder));
  gradients.start(member, 1);  // in the round that had begun
  CHECK(member.act().empty());
}

TEST_CASE("priorities of a newer box that do not fit are ignored") {
  Member member;
  member.join();
  member.deliver(told(Policy::kExplicit, {1, 2, 3}));
  member.deliver(told(static_cast<Policy>(3), {1, 2}));
  Gradients gradients;
  gradients.start(member, 0);
  gradients.start(member, 1);
  CHECK(order(member) == std::vector<uint32_t>{0, 2});
}

TEST_CASE("priorities requested while the box was lost are requested again") {
  auto options = Member::default_options();
  options.rank = 1;
  Member member(options);
  member.join();
  member.lose_box();
  member.membership.ask_priorities(Policy::kFifo, {});
  CHECK(member.act().empty());
  member.ask_join_again();
  member.resume(4, {0, 0, 0});
  member.act();
  CHECK(member.message().set_priorities().policy() == 2);
}

TEST_CASE("rank 0 sends the current priorities to a box that has lost them") {
  for (const uint32_t rank : {0u, 1u}) {
    for (const bool box_knows : {false, true}) {
      auto options = Member::default_options();
      options.rank = rank;
      Member member(options);
      member.join();
      member.deliver(told(Policy::kExplicit, {1, 2}));
      member.lose_box();
      member.ask_join_again();
      if (box_knows) member.deliver(told(Policy::kFifo));
      member.resume(4, {0, 0, 0});
      member.act();
      if (rank != 0 || box_knows) {
        CHECK(member.actions.empty());
      } else {
        CHECK(by_tensor(member.message().set_priorities()) == List{1, 2});
      }
    }
  }
}

}  // namespace pbox::test::membership_priorities_test
