// Rights: every message of control.proto for every role.
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "appliance/control/authorise.h"

namespace pbox::control::authorise_test {
namespace {

using Catch::Contains;
using Message = proto::WorkerMessage;
using tls::Identity;
using tls::Role;

const Identity kBox{.role = Role::kBox, .cluster = "rack", .box = "a"};
const Identity kTenant{.role = Role::kTenant,
                       .cluster = "rack",
                       .tenant = "acme",
                       .job_glob = "run-*",
                       .ranks = {2, 3}};
const Standing kStranger, kMember{.has_joined = true}, kListed{.is_listed = true};
const Identity kOperator{.role = Role::kOperator, .cluster = "rack"};
const Identity kViewer{.role = Role::kViewer, .cluster = "rack"};

Message of_kind(Message::KindCase kind) {
  Message message;
  switch (kind) {
    case Message::kJoin: message.mutable_join(); break;
    case Message::kLeave: message.mutable_leave(); break;
    case Message::kHeartbeat: message.mutable_heartbeat(); break;
    case Message::kBarrier: message.mutable_barrier(); break;
    case Message::kSetLearningRate: message.mutable_set_learning_rate(); break;
    case Message::kAskDataAddresses: message.mutable_ask_data_addresses(); break;
    case Message::kRounds: message.mutable_rounds(); break;
    case Message::kSetPriorities: message.mutable_set_priorities(); break;
    case Message::kSetSync: message.mutable_set_sync(); break;
    case Message::kAskPartMap: message.mutable_ask_part_map(); break;
    case Message::kQueuePairs: message.mutable_queue_pairs(); break;
    case Message::kAskState: message.mutable_ask_state(); break;
    case Message::kPortGivenUp: message.mutable_port_given_up(); break;
    case Message::kAskCut: message.mutable_ask_cut(); break;
    case Message::kAskReport: message.mutable_ask_report(); break;
    case Message::kStepVerdict: message.mutable_step_verdict(); break;
    case Message::kAskStep: message.mutable_ask_step(); break;
    case Message::kSlotOperation: message.mutable_slot_operation(); break;
    case Message::KIND_NOT_SET: break;
  }
  return message;
}

// The field numbers of WorkerMessage's kinds, from the text of control.proto.
std::set<int> kinds_of_protocol() {
  std::ifstream file(PBOX_CONTROL_PROTO);
  std::string line;
  while (line != "message WorkerMessage {" && std::getline(file, line)) {
  }
  while (line != "  oneof kind {" && std::getline(file, line)) {
  }
  std::set<int> kinds;
  while (std::getline(file, line) && line != "  }") {
    const size_t equals = line.find('=');
    if (equals != std::string::npos) kinds.insert(std::stoi(line.substr(equals + 1)));
  }
  return kinds;
}

Message join(const std::string& job, uint32_t rank, bool is_backup = false) {
  Message message;
  message.mutable_join()->set_job(job);
  message.mutable_join()->set_rank(rank);
  message.mutable_join()->set_is_backup(is_backup);
  return message;
}

Message ask_part_map(const std::string& job, bool is_backup = false) {
  Message message;
  message.mutable_ask_part_map()->set_job(job);
  message.mutable_ask_part_map()->set_is_backup(is_backup);
  return message;
}

}  // namespace

TEST_CASE("the table has one row for each kind of message, and one for those of later releases") {
  std::set<int> rows;
  for (const MessageRights& row : message_rights()) CHECK(rows.insert(row.kind).second);
  auto kinds = kinds_of_protocol();
  REQUIRE(kinds.size() >= 16);
  kinds.insert(Message::KIND_NOT_SET);
  CHECK(rows == kinds);
}

TEST_CASE("each role may send what the table says, and nothing else") {
  struct Row {
    Message::KindCase kind;
    // Rights of box, tenant, operator and viewer: a always, j once joined, l if listed, n never.
    const char* rights;
  };
  // The tenant's JOIN and AskPartMap name no job here, so they are refused.
  const std::vector<Row> table = {{Message::kJoin, "annn"},
                                  {Message::kLeave, "jjnn"},
                                  {Message::kHeartbeat, "jjnn"},
                                  {Message::kBarrier, "jjnn"},
                                  {Message::kSetLearningRate, "jjnn"},
                                  {Message::kAskDataAddresses, "aaaa"},
                                  {Message::kRounds, "jjnn"},
                                  {Message::kSetPriorities, "jjnn"},
                                  {Message::kSetSync, "jjnn"},
                                  {Message::kAskPartMap, "annn"},
                                  {Message::kQueuePairs, "jjnn"},
                                  {Message::kAskState, "lnnn"},
                                  {Message::kPortGivenUp, "jjnn"},
                                  {Message::kAskCut, "lnnn"},
                                  {Message::kAskReport, "lnnn"},
                                  {Message::kStepVerdict, "jjnn"},
                                  {Message::kAskStep, "lnnn"},
                                  {Message::kSlotOperation, "jjnn"},
                                  {Message::KIND_NOT_SET, "jjnn"}};
  REQUIRE(table.size() == message_rights().size());
  const Identity peers[] = {kBox, kTenant, kOperator, kViewer};
  for (const Row& row : table) {
    const Message message = of_kind(row.kind);
    REQUIRE(message.kind_case() == row.kind);
    for (size_t role = 0; role < std::size(peers); ++role) {
      CAPTURE(int(row.kind), role);
      for (const bool has_joined : {false, true}) {
        for (const bool is_listed : {false, true}) {
          const char right = row.rights[role];
          const bool may =
              right == 'a' || (right == 'j' && has_joined) || (right == 'l' && is_listed);
          const Standing standing{.has_joined = has_joined, .is_listed = is_listed};
          CHECK(authorise(peers[role], message, standing).ok() == may);
        }
      }
    }
  }
}

TEST_CASE("a rank reports a lost box for itself only") {
  Message question = ask_part_map("acme/run-1");
  question.mutable_ask_part_map()->set_rank(9);  // no report
  CHECK(authorise(kTenant, question, kStranger).ok());
  question.mutable_ask_part_map()->set_lost_box("b");
  CHECK_THAT(authorise(kTenant, question, kStranger).error().message,
             Contains("do not allow rank 9 of job 'acme/run-1'"));
  question.mutable_ask_part_map()->set_rank(3);
  CHECK(authorise(kTenant, question, kStranger).ok());
}

TEST_CASE("only boxes that the store lists report which ranks cannot reach a box") {
  Message report;
  report.mutable_ask_data_addresses()->set_cut_off_job("acme/run-1");
  CHECK(authorise(kBox, report, kListed).ok());
  CHECK_THAT(authorise(kBox, report, kStranger).error().message,
             Contains("a report of ranks") && Contains("lists no box 'a'"));
  for (const Identity& peer : {kTenant, kOperator, kViewer}) {
    CHECK_THAT(authorise(peer, report, kListed).error().message,
               Contains("do not allow a report of ranks; it is for boxes"));
  }
}

TEST_CASE("a tenant joins jobs and ranks of its keys only") {
  CHECK(authorise(kTenant, join("acme/run-1", 2), kStranger).ok());
  CHECK(authorise(kTenant, join("acme/run-1", 3), kStranger).ok());
  CHECK(authorise(kTenant, ask_part_map("acme/run-1"), kStranger).ok());
  for (const Message& message :
       {join("acme/other", 2), join("run-1", 2), join("acmes/run-1", 2), join("other/run-1", 2),
        ask_part_map("acme/other"), ask_part_map("other/run-1"), ask_part_map("")}) {
    const Status denied = authorise(kTenant, message, kMember);
    REQUIRE_FALSE(denied.ok());
    CHECK_THAT(denied.error().message,
               Contains(tls::to_uri(kTenant)) && Contains("acme/NAME") && Contains("pboxctl keys"));
  }
  for (const uint32_t rank : {0u, 1u, 4u, UINT32_MAX}) {
    const Status denied = authorise(kTenant, join("acme/run-1", rank), kStranger);
    REQUIRE_FALSE(denied.ok());
    CHECK_THAT(denied.error().message,
               Contains("rank " + std::to_string(rank)) && Contains("--ranks"));
  }
}

TEST_CASE("replicas are for boxes of the cluster") {
  for (const Message& message : {join("anything", 0, true), ask_part_map("anything", true)}) {
    CHECK(authorise(kBox, message, kListed).ok());
    const Status denied = authorise(kBox, message, kStranger);
    REQUIRE_FALSE(denied.ok());
    CHECK_THAT(denied.error().message, Contains("lists no box 'a'") && Contains("pboxctl boxes"));
  }
  for (const Message& message : {join("acme/run-1", 2, true), ask_part_map("acme/run-1", true)}) {
    const Status denied = authorise(kTenant, message, kStranger);
    REQUIRE_FALSE(denied.ok());
    CHECK_THAT(denied.error().message, Contains("only boxes make replicas"));
  }
}

}  // namespace pbox::control::authorise_test
