// Attacks on the control connections of a box with keys. After each one the box's state is as it
// was before, and the rounds of the job that trains meanwhile are exact.
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <limits>

#include "base/rng.h"
#include "nic/wire/control_versions.h"
#include "tests/support/attacked_site.h"

namespace pbox::test {
namespace {

using Catch::Contains;
using proto::WorkerMessage;

constexpr int kSilenceMs = 300;
constexpr char kStranger[] = "pbox://rack/tenant/evil/job/*/rank/*";

// Returns the text with which TLS refuses these keys; empty if it does not.
std::string refused_by_tls(AttackedSite& site, const tls::Credentials& keys) {
  SecurePeer peer(site.daemon().control(), keys);
  // A client learns that its own keys are refused only after its end of the handshake.
  while (peer.failure().empty() && peer.heard()) {
  }
  return peer.failure();
}

// Returns the box's refusal of the first message of a peer with these keys.
std::string refusal(AttackedSite& site, const tls::Credentials& keys,
                    const WorkerMessage& message) {
  SecurePeer peer(site.daemon().control(), keys);
  return peer.refusal(message);
}

// Checks that a refusal tells a stranger nothing about the job.
void tells_nothing(const std::string& text) {
  INFO(text);
  CHECK(text.find(kSecretTensor) == std::string::npos);
  CHECK(text.find(std::to_string(kSecretElements)) == std::string::npos);
  CHECK(text.find("127.0.0.1") == std::string::npos);
  CHECK(text.find("sgd") == std::string::npos);
}

std::string random_bytes(size_t count) {
  Rng draws(count);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(draws.next());
  return bytes;
}

WorkerMessage part_map_of(const std::string& job) {
  WorkerMessage message;
  proto::AskPartMap& question = *message.mutable_ask_part_map();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job(job);
  question.set_bytes(4000);
  return message;
}

// Questions that only boxes ask.
std::vector<WorkerMessage> questions_of_boxes() {
  std::vector<WorkerMessage> messages(5);
  proto::AskState& state = *messages[0].mutable_ask_state();
  state.set_protocol_version(wire::kControlProtocolVersion);
  state.set_job(kWeightsJob);
  state.set_epoch(1);
  messages[1] = messages[0];
  messages[1].mutable_ask_state()->set_taken(true);
  proto::AskCut& cut = *messages[2].mutable_ask_cut();
  cut.set_protocol_version(wire::kControlProtocolVersion);
  cut.set_job(kWeightsJob);
  cut.set_snapshot(1);
  cut.set_round(1);
  messages[3].mutable_ask_report()->set_protocol_version(wire::kControlProtocolVersion);
  proto::AskStep& step = *messages[4].mutable_ask_step();
  step.set_protocol_version(wire::kControlProtocolVersion);
  step.set_job(kWeightsJob);
  step.set_epoch(1);
  return messages;
}

// Messages of members, from a peer that has joined nothing.
std::vector<WorkerMessage> messages_of_members() {
  std::vector<WorkerMessage> messages(8);
  messages[0].mutable_leave();
  messages[1].mutable_heartbeat()->set_sequence(1);
  messages[2].mutable_barrier()->set_sequence(1);
  messages[3].mutable_set_learning_rate()->set_learning_rate(7);
  messages[4].mutable_rounds()->set_last(true);
  messages[5].mutable_set_priorities()->set_policy(1);
  messages[6].mutable_step_verdict()->set_skipped(true);
  messages[7].mutable_port_given_up()->set_port("x");
  return messages;
}

}  // namespace

TEST_CASE("keys that are wrong, old or another cluster's open no connection") {
  AttackedSite site;
  const auto other = authority(), lab = authority("lab");
  const auto both = other.certificate + site.signer().certificate;
  SECTION("a wrong authority") {
    const KeyFolder keys(other, KeyFolder::order(kStranger), both);
    CHECK_THAT(refused_by_tls(site, *keys.load()), Contains("does not accept"));
  }
  SECTION("a wrong authority that claims the honest tenant's identity") {
    const KeyFolder keys(other, KeyFolder::order("pbox://rack/tenant/acme/job/*/rank/0-1"), both);
    CHECK_THAT(refused_by_tls(site, *keys.load()), Contains("does not accept"));
  }
  SECTION("a wrong authority that claims to be a box") {
    const KeyFolder keys(other, KeyFolder::order("pbox://rack/box/b"), both);
    CHECK_THAT(refused_by_tls(site, *keys.load()), Contains("does not accept"));
  }
  SECTION("another cluster's authority") {
    const KeyFolder keys(lab, KeyFolder::order("pbox://lab/tenant/acme/job/*/rank/*"),
                         lab.certificate + site.signer().certificate);
    CHECK_FALSE(refused_by_tls(site, *keys.load()).empty());
  }
  SECTION("an expired certificate") {
    // The certificate is valid while it is loaded, and has expired when it is presented.
    const KeyFolder keys(site.signer(), KeyFolder::order(kStranger, 2), site.signer().certificate);
    const auto loaded = keys.load();
    sleep(3);
    CHECK_THAT(refused_by_tls(site, *loaded), Contains("does not accept"));
  }
  site.check();
}

TEST_CASE("somebody on the way to a box with keys can neither repeat nor strip TLS") {
  AttackedSite site;
  const std::string& control = site.daemon().control();
  SECTION("a connection is sent again, byte by byte") {
    std::string recorded;
    {
      SecurePeer peer(control, site.honest());
      CHECK(peer.refusal(part_map_of(kHonestJob)).empty());
      recorded = peer.sent();
    }
    const uint64_t refused = site.daemon().metric("pbox_handshakes_refused_total");
    CHECK(answer_to(control, recorded, kSilenceMs).find(kHonestJob) == std::string::npos);
    CHECK(await([&] { return site.daemon().metric("pbox_handshakes_refused_total") > refused; }));
  }
  SECTION("the plain protocol is spoken to the port of TLS") {
    for (const WorkerMessage& message :
         {part_map_of(kHonestJob), join_of(kHonestJob), questions_of_boxes()[0]}) {
      const std::string answer = answer_to(control, *wire::frame(message), kSilenceMs);
      wire::FrameReader reader;
      reader.append(answer.data(), answer.size());
      const auto body = reader.next();
      REQUIRE((body.ok() && *body));
      proto::BoxMessage heard;
      REQUIRE(heard.ParseFromString(**body));
      CHECK_THAT(heard.failure().message(), Contains("PBOX_KEYS"));
      CHECK(answer.find("acme") == std::string::npos);
    }
  }
  SECTION("junk instead of TLS") {
    for (const std::string& junk :
         {std::string("GET / HTTP/1.1\r\n\r\n"), random_bytes(100'000),
          std::string("\x16\x03\x01", 3),
          std::string("\x16\x03\x01\xff\xff", 5) + random_bytes(70'000), std::string(1000, '\0')}) {
      answer_to(control, junk, kSilenceMs);
    }
  }
  SECTION("junk inside TLS") {
    SecurePeer peer(control, site.stranger());
    peer.say_bytes(std::string("\xff\xff\xff\xff", 4) + random_bytes(5000));
    const auto answer = peer.heard();
    CHECK((!answer || answer->has_failure()));
  }
  SECTION("a record of TLS with one bit changed") {
    SecurePeer peer(control, site.stranger());
    constexpr bool kFlipsABit = true;
    peer.say_bytes(*wire::frame(part_map_of("evil/x")), kFlipsABit);
    CHECK_FALSE(peer.heard());
  }
  site.check();
}

TEST_CASE("a tenant has no rights to another tenant's job, and learns nothing of it") {
  AttackedSite site;
  const tls::Credentials& stranger = site.stranger();
  SECTION("JOIN under its name") {
    for (const char* job : {kHonestJob, kWeightsJob}) {
      const std::string said = refusal(site, stranger, join_of(job));
      CHECK_THAT(said, Contains("do not allow job"));
      tells_nothing(said);
    }
  }
  SECTION("JOIN under its name, after it is over") {
    CHECK_THAT(refusal(site, stranger, join_of("acme/over")), Contains("do not allow job"));
  }
  SECTION("JOIN under its name with other tensors, ranks and settings tells nothing") {
    WorkerMessage join = join_of(kWeightsJob, 5, 9);
    join.mutable_join()->set_mode(1);
    join.mutable_join()->mutable_tensors(0)->set_name(kSecretTensor);
    const std::string said = refusal(site, stranger, join);
    CHECK_THAT(said, Contains("do not allow job"));
    CHECK(said == refusal(site, stranger, join_of(kWeightsJob)));
  }
  SECTION("JOIN with restore of its snapshot") {
    WorkerMessage join = join_of(kWeightsJob);
    join.mutable_join()->set_mode(1);
    join.mutable_join()->set_restore("latest");
    const std::string said = refusal(site, stranger, join);
    CHECK_THAT(said, Contains("do not allow job"));
    tells_nothing(said);
  }
  SECTION("JOIN that resumes or rejoins in a rank's place") {
    WorkerMessage resumes = join_of(kHonestJob, 0, 2), rejoins = resumes;
    resumes.mutable_join()->set_resumes(true);
    resumes.mutable_join()->set_epoch(1);
    rejoins.mutable_join()->set_rejoins(true);
    CHECK_THAT(refusal(site, stranger, resumes), Contains("do not allow job"));
    CHECK_THAT(refusal(site, stranger, rejoins), Contains("do not allow job"));
  }
  site.check();
}

TEST_CASE("a tenant can neither pass for a box, nor for a member of a job") {
  AttackedSite site;
  const tls::Credentials& stranger = site.stranger();
  SECTION("JOIN as a box that makes a replica") {
    WorkerMessage join = join_of(kWeightsJob);
    join.mutable_join()->set_is_backup(true);
    CHECK_THAT(refusal(site, stranger, join), Contains("only boxes make replicas"));
    WorkerMessage own = join_of("evil/x");
    own.mutable_join()->set_is_backup(true);
    CHECK_THAT(refusal(site, stranger, own), Contains("only boxes make replicas"));
  }
  SECTION("AskPartMap of it, and of a lost box") {
    WorkerMessage question = part_map_of(kHonestJob);
    CHECK_THAT(refusal(site, stranger, question), Contains("do not allow job"));
    question.mutable_ask_part_map()->set_lost_box("a");
    question.mutable_ask_part_map()->set_lost_for_ms(UINT32_MAX);
    CHECK_THAT(refusal(site, stranger, question), Contains("do not allow job"));
  }
  SECTION("AskState, its end, AskCut, AskReport and AskStep") {
    for (const WorkerMessage& question : questions_of_boxes()) {
      const std::string said = refusal(site, stranger, question);
      CHECK_THAT(said, Contains("do not allow") && Contains("it is for boxes"));
      tells_nothing(said);
    }
  }
  SECTION("the honest tenant's own workers are no boxes either") {
    for (const WorkerMessage& question : questions_of_boxes()) {
      CHECK_THAT(refusal(site, site.honest(), question), Contains("it is for boxes"));
    }
  }
  SECTION("messages of members, before JOIN") {
    for (const WorkerMessage& message : messages_of_members()) {
      CHECK_THAT(refusal(site, stranger, message), Contains("before JOIN"));
    }
  }
  SECTION("a name that only looks like its own") {
    for (const char* job : {"acme", "evil", "EVIL/x", "evil", "/acme/sums", ""}) {
      INFO(job);
      CHECK_FALSE(refusal(site, stranger, join_of(job)).empty());
    }
  }
  SECTION("a viewer and an operator join nothing") {
    for (const char* uri : {"pbox://rack/viewer", "pbox://rack/operator"}) {
      const KeyFolder keys(site.signer(), uri);
      CHECK_THAT(refusal(site, *keys.load(), join_of(kHonestJob)), Contains("do not allow JOIN"));
      CHECK_THAT(refusal(site, *keys.load(), questions_of_boxes()[0]), Contains("AskState"));
    }
  }
  site.check();
}

TEST_CASE("keys of the honest tenant's job do no more than they say") {
  AttackedSite site;
  SECTION("a rank outside of the range") {
    WorkerMessage join = join_of(kHonestJob, 2, 3);
    CHECK_THAT(refusal(site, site.honest(), join), Contains("do not allow rank 2"));
  }
  SECTION("another job of the tenant") {
    const KeyFolder keys(site.signer(), "pbox://rack/tenant/acme/job/other/rank/*");
    CHECK_THAT(refusal(site, *keys.load(), join_of(kHonestJob)), Contains("do not allow job"));
  }
  SECTION("a rank that is taken") {
    CHECK_FALSE(refusal(site, site.honest(), join_of(kHonestJob, 0, 2)).empty());
    WorkerMessage rejoins = join_of(kHonestJob, 0, 2);
    rejoins.mutable_join()->set_rejoins(true);
    CHECK_FALSE(refusal(site, site.honest(), rejoins).empty());
  }
  site.check();
}

TEST_CASE("a tenant's own connections and jobs do not disturb another tenant's") {
  AttackedSite site;
  const std::string& control = site.daemon().control();
  site.allow_other_jobs();
  SECTION("a job whose name looks like a path to another's") {
    CHECK(refusal(site, site.stranger(), join_of("evil/../acme/sums")).empty());
    CHECK_FALSE(refusal(site, site.stranger(), join_of("../acme/sums")).empty());
  }
  SECTION("a hundred jobs, each of which lacks a rank") {
    std::vector<std::unique_ptr<SecurePeer>> peers;
    for (int job = 0; job < 100; ++job) {
      peers.push_back(std::make_unique<SecurePeer>(control, site.stranger()));
      peers.back()->say(join_of("evil/" + std::to_string(job), 0, 2));
    }
  }
  SECTION("a hundred jobs that run") {
    std::vector<std::unique_ptr<SecurePeer>> peers;
    for (int job = 0; job < 100; ++job) {
      peers.push_back(std::make_unique<SecurePeer>(control, site.stranger()));
      peers.back()->say(join_of("evil/" + std::to_string(job)));
      CHECK(peers.back()->heard());
    }
  }
  SECTION("scans of pipelines, as fast as messages can be sent") {
    SecurePeer peer(control, site.stranger());
    peer.say(join_of("evil/scans"));
    REQUIRE(peer.heard());
    WorkerMessage priorities;
    priorities.mutable_set_priorities()->set_policy(1);
    for (int message = 0; message < 2000; ++message) peer.say(priorities);
  }
  SECTION("a peer that asks and never reads") {
    SecurePeer peer(control, site.stranger());
    WorkerMessage question;
    question.mutable_ask_data_addresses();
    const uint64_t before = site.daemon().resident_bytes();
    const timeval limit{.tv_sec = 1, .tv_usec = 0};
    REQUIRE(setsockopt(peer.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0);
    for (int message = 0; message < 20'000; ++message) peer.say(question);
    CHECK(site.daemon().resident_bytes() < before + (64 << 20));
  }
  SECTION("a flood of connections and of handshakes that do not end") {
    std::vector<int> flood;
    std::string plain, hello;
    REQUIRE(site.stranger().connect("")->receive("", plain, hello).ok());
    for (int index = 0; index < 600; ++index) {
      const int fd = connect_to(control);
      if (fd < 0) continue;
      if (index % 2 == 0) static_cast<void>(send(fd, hello.data(), hello.size(), MSG_NOSIGNAL));
      flood.push_back(fd);
    }
    // Meanwhile the honest tenant's connections are accepted.
    CHECK(refusal(site, site.honest(), part_map_of(kHonestJob)).empty());
    for (const int fd : flood) close(fd);
  }
  site.check();
}

TEST_CASE("messages that are too large, or hold no numbers, are refused") {
  AttackedSite site;
  const std::string& control = site.daemon().control();
  site.allow_other_jobs();
  SECTION("a JOIN of a million chunks") {
    WorkerMessage join = join_of("evil/large");
    join.mutable_join()->set_chunk_bytes(4096);
    join.mutable_join()->mutable_tensors(0)->set_elements(uint64_t{1} << 40);
    CHECK_FALSE(refusal(site, site.stranger(), join).empty());
  }
  SECTION("a JOIN whose numbers are none") {
    WorkerMessage join = join_of("evil/nan");
    join.mutable_join()->set_mode(1);
    proto::Optimizer& optimizer = *join.mutable_join()->mutable_optimizer();
    optimizer.set_kind(1);
    optimizer.set_learning_rate(std::numeric_limits<float>::quiet_NaN());
    CHECK_FALSE(refusal(site, site.stranger(), join).empty());
    optimizer.set_learning_rate(0.1f);
    join.mutable_join()->set_resumes(true);
    join.mutable_join()->set_learning_rates_set(1);
    join.mutable_join()->set_learning_rate(std::numeric_limits<float>::infinity());
    SecurePeer peer(control, site.stranger());
    peer.say(join);
  }
  SECTION("a JOIN with very many absent ranks") {
    WorkerMessage join = join_of("evil/absent");
    join.mutable_join()->set_resumes(true);
    for (uint32_t rank = 0; rank < 200'000; ++rank) join.mutable_join()->add_absent_ranks(rank);
    SecurePeer peer(control, site.stranger());
    peer.say(join);
  }
  SECTION("a name of almost a megabyte") {
    CHECK_FALSE(
        refusal(site, site.stranger(), part_map_of("evil/" + std::string(900'000, 'x'))).empty());
    CHECK_FALSE(
        refusal(site, site.stranger(), join_of("evil/" + std::string(900'000, 'x'))).empty());
  }
  SECTION("junk to the port of metrics") {
    for (const std::string& junk :
         {random_bytes(100'000), std::string("GET /../../etc/passwd HTTP/1.1\r\n\r\n"),
          "GET /" + std::string(100'000, 'a') + " HTTP/1.1\r\n\r\n",
          std::string("DELETE /api/v1/jobs/acme%2Fsums HTTP/1.1\r\nHost: x\r\n\r\n"),
          std::string("POST /api/v1/jobs/acme%2Fsums/priorities HTTP/1.1\r\nHost: x\r\n"
                      "Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{")}) {
      const std::string answer = answer_to(site.daemon().admin(), junk, kSilenceMs);
      CHECK(answer.find(" 200 ") == std::string::npos);
      CHECK(answer.find("root:") == std::string::npos);
    }
  }
  site.check();
}

}  // namespace pbox::test
