// The registry tells the audit log who did what, and who was refused.
#include <catch2/catch.hpp>

#include "tests/unit/appliance/control/registry_desk.h"

namespace pbox::control::job_registry_audit_test {
namespace {

using audit::Kind;
using Catch::Contains;

constexpr char kTenant[] = "pbox://rack/tenant/acme/job/run-*/rank/*";
constexpr char kOtherBox[] = "pbox://rack/box/b";

class AuditedDesk {
 public:
  // Opens a connection of a peer with this identity. Returns its number.
  ConnectionId open(const std::string& uri) {
    const ConnectionId id = next_id_++;
    const auto peer = nic::parse_endpoint("10.0.0.9", static_cast<uint16_t>(id));
    const tls::Identity identity = *tls::parse_identity(uri);
    desk.parts.listed.insert(identity.box);
    desk.registry().on_open(id, *peer, desk.now_ns(), identity);
    return id;
  }
  std::vector<audit::Record> take() { return std::exchange(records_, {}); }
  // The one record since the last call.
  audit::Record take_one() {
    const auto records = take();
    REQUIRE(records.size() == 1);
    return records[0];
  }

 private:
  std::vector<audit::Record> records_;
  ConnectionId next_id_ = 1'000;

 public:
  Desk desk{{.box_name = "a",
             .audit = [this](const audit::Record& record) { records_.push_back(record); }}};
};

proto::WorkerMessage ask_state(const std::string& job, uint32_t epoch) {
  proto::WorkerMessage message;
  proto::AskState& question = *message.mutable_ask_state();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job(job);
  question.set_epoch(epoch);
  return message;
}

}  // namespace

TEST_CASE("the audit log learns who joined, with which rank, and from where") {
  AuditedDesk audited;
  const ConnectionId worker = audited.open(kTenant);
  audited.desk.say(worker, join_message("acme/run-1", 1, 2));
  const audit::Record joined = audited.take_one();
  CHECK(joined.kind == Kind::kJoin);
  CHECK(joined.who == kTenant);
  CHECK(joined.address == "10.0.0.9:1000");
  CHECK(joined.job == "acme/run-1");
  CHECK(joined.part == 0u);
  CHECK(joined.rank == 1u);
  CHECK(joined.reason.empty());

  // Without keys the address is all that is known.
  audited.desk.join(join_message("open", 0, 2));
  const audit::Record open = audited.take_one();
  CHECK(open.kind == Kind::kJoin);
  CHECK(open.who.empty());
  CHECK_FALSE(open.address.empty());
}

TEST_CASE("the audit log learns of joins and messages that are refused, with the reason") {
  AuditedDesk audited;
  audited.desk.say(audited.open(kTenant), join_message("acme/other", 0, 2));
  const audit::Record other = audited.take_one();
  CHECK(other.kind == Kind::kJoinRefused);
  CHECK(other.who == kTenant);
  CHECK(other.job == "acme/other");
  CHECK_THAT(other.reason, Contains("do not allow job 'acme/other'"));

  audited.desk.say(audited.open(kTenant), join_message("acme/run-1", 2, 2));
  CHECK(audited.take_one().kind == Kind::kJoinRefused);

  audited.desk.say(audited.open(kTenant), ask_state("acme/run-1", 1));
  const audit::Record denied = audited.take_one();
  CHECK(denied.kind == Kind::kMessageDenied);
  CHECK(denied.who == kTenant);
  CHECK_THAT(denied.reason, Contains("AskState"));
}

TEST_CASE("the audit log learns once which box takes the state of a part, and that it has it") {
  AuditedDesk audited;
  const ConnectionId rank = audited.desk.join(join_optimizing(0));
  audited.desk.join(join_optimizing(1));
  CHECK(audited.take().size() == 2);
  const uint32_t epoch = audited.desk.take(rank).at(0).session().epoch();
  for (pipeline::Chunk* chunk : chunks_of(audited.desk)) chunk->rounds_finished = 5;

  const ConnectionId box = audited.open(kOtherBox);
  auto question = ask_state("train", epoch);
  audited.desk.say(box, question);
  const audit::Record given = audited.take_one();
  CHECK(given.kind == Kind::kState);
  CHECK(given.who == kOtherBox);
  CHECK(given.job == "train");
  CHECK(given.part == 0u);
  CHECK(given.epoch == epoch);
  CHECK(given.outcome == "given");
  audited.desk.say(box, question);  // the next piece
  CHECK(audited.take().empty());
  audited.desk.say(audited.open("pbox://rack/box/c"), question);
  CHECK(audited.take_one().who == "pbox://rack/box/c");

  question.mutable_ask_state()->set_taken(true);
  audited.desk.say(box, question);
  CHECK(audited.take_one().outcome == "taken");
  audited.desk.say(box, question);  // the state is gone
  CHECK(audited.take().empty());
}

TEST_CASE("the audit log learns of each cut once, and whether it has begun") {
  AuditedDesk audited;
  audited.desk.start("sums", 1);
  CHECK(audited.take_one().kind == Kind::kJoin);
  proto::WorkerMessage message;
  proto::AskCut& question = *message.mutable_ask_cut();
  question.set_protocol_version(wire::kControlProtocolVersion);
  question.set_job("sums");
  question.set_snapshot(7);
  audited.desk.say(audited.open(kOtherBox), message);
  const audit::Record cut = audited.take_one();
  CHECK(cut.kind == Kind::kCut);
  CHECK(cut.who == kOtherBox);
  CHECK(cut.job == "sums");
  CHECK(cut.snapshot == 7u);
  CHECK(cut.outcome == "failed");
  CHECK_FALSE(cut.reason.empty());
  question.set_over(true);
  audited.desk.say(audited.open(kOtherBox), message);
  CHECK(audited.take().empty());
}

}  // namespace pbox::control::job_registry_audit_test
