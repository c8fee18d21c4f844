#include <poll.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstring>
#include <future>

#include "nic/socket/address.h"
#include "worker/transport/box_addresses.h"

namespace pbox::worker {
namespace {

BoxAddresses::Addresses address_of(const std::string& host) {
  BoxAddresses::Address address{};
  address.length = nic::to_sockaddr(*nic::parse_endpoint(host, 9541), address.address);
  return {address};
}

std::string text_of(const BoxAddresses::Addresses& addresses) {
  return to_string(nic::from_sockaddr(addresses.at(0).address));
}

void await_end(const BoxAddresses& addresses) {
  pollfd wait{addresses.fd(), POLLIN, 0};
  REQUIRE(poll(&wait, 1, 60'000) == 1);
}

}  // namespace

TEST_CASE("IP addresses are known at once, and nobody is asked") {
  BoxAddresses addresses(
      [](const std::string&) -> Result<BoxAddresses::Addresses> { std::abort(); });
  for (const std::string box : {"10.0.0.7:9541", "[fd00::7]:9541"}) {
    const auto found = addresses.find(box);
    REQUIRE(found.has_value());
    REQUIRE(found->ok());
    CHECK(text_of(**found) == box);
    addresses.refresh(box);
  }
}

TEST_CASE("text that is no HOST:PORT is refused at once") {
  BoxAddresses addresses;
  for (const char* box : {"box", ":9541", "box:", "fd00::7:9541", "[fd00::7:9541"}) {
    const auto found = addresses.find(box);
    REQUIRE(found.has_value());
    REQUIRE_FALSE(found->ok());
    CHECK(found->error().code == ErrorCode::kInvalidArgument);
  }
}

TEST_CASE("a name is resolved once, and its addresses are kept until there are newer ones") {
  std::atomic<int> asked{0};
  std::promise<void> answer;
  const std::shared_future<void> answered = answer.get_future().share();
  BoxAddresses addresses([&asked, answered](const std::string&) -> Result<BoxAddresses::Addresses> {
    const int attempt = ++asked;
    if (attempt == 1) return address_of("10.0.0.1");
    if (attempt == 2) return Error{ErrorCode::kUnavailable, "the name server is down"};
    answered.wait();
    return address_of("10.0.0.2");
  });
  const std::string box = "box.example:9541";
  CHECK_FALSE(addresses.find(box).has_value());
  await_end(addresses);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const auto found = addresses.find(box);
    REQUIRE(found.has_value());
    CHECK(text_of(found->value()) == "10.0.0.1:9541");
  }
  CHECK(asked == 1);
  addresses.refresh(box);
  await_end(addresses);
  REQUIRE(addresses.find(box).has_value());  // the known one stays
  CHECK(text_of(addresses.find(box)->value()) == "10.0.0.1:9541");
  addresses.refresh(box);
  addresses.refresh(box);  // one resolution at a time
  REQUIRE(addresses.find(box).has_value());
  CHECK(text_of(addresses.find(box)->value()) == "10.0.0.1:9541");
  answer.set_value();
  await_end(addresses);
  CHECK(text_of(addresses.find(box)->value()) == "10.0.0.2:9541");
  CHECK(asked == 3);
}

TEST_CASE("a name that cannot be resolved is an error once, and then is asked for again") {
  std::atomic<int> asked{0};
  BoxAddresses addresses([&asked](const std::string& box) -> Result<BoxAddresses::Addresses> {
    ++asked;
    return Error{ErrorCode::kUnavailable, "no " + box};
  });
  for (int attempt = 1; attempt <= 2; ++attempt) {
    CHECK_FALSE(addresses.find("box.example:9541").has_value());
    await_end(addresses);
    const auto found = addresses.find("box.example:9541");
    REQUIRE(found.has_value());
    REQUIRE_FALSE(found->ok());
    CHECK(found->error().message == "no box.example:9541");
    CHECK(asked == attempt);
  }
}

TEST_CASE("nothing waits for a name server that never answers, not even the end") {
  const auto answer = std::make_shared<std::promise<void>>();
  const std::shared_future<void> answered = answer->get_future().share();
  {
    BoxAddresses addresses([answered](const std::string&) -> Result<BoxAddresses::Addresses> {
      answered.wait();
      return address_of("10.0.0.1");
    });
    CHECK_FALSE(addresses.find("box.example:9541").has_value());
    CHECK_FALSE(addresses.find("box.example:9541").has_value());
  }
  answer->set_value();
}

TEST_CASE("the system resolves localhost") {
  const auto found = BoxAddresses::resolve_by_system("localhost:9541");
  REQUIRE(found.ok());
  CHECK(nic::from_sockaddr(found->at(0).address).is_loopback());
}

}  // namespace pbox::worker
