// Errors of etcd that a real member gives only at certain moments, given by a server of the test.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <optional>

#include "appliance/cluster/etcd.grpc.pb.h"
#include "appliance/cluster/etcd_store.h"
#include "tests/unit/appliance/cluster/contract.h"

namespace pbox::cluster::etcd_faults_test {
namespace {

using Catch::Contains;
using grpc::StatusCode;

// A member that answers every read and every change with one status.
class Member : public etcdserverpb::KV::Service {
 public:
  explicit Member(const grpc::Status& status) : status_(status) {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    endpoint = "127.0.0.1:" + std::to_string(port);
  }
  ~Member() override { server_->Shutdown(); }

  grpc::Status Range(grpc::ServerContext*, const etcdserverpb::RangeRequest*,
                     etcdserverpb::RangeResponse* response) override {
    response->mutable_header()->set_revision(7);
    return status_;
  }
  grpc::Status Txn(grpc::ServerContext*, const etcdserverpb::TxnRequest*,
                   etcdserverpb::TxnResponse*) override {
    return status_;
  }

  std::string endpoint;

 private:
  const grpc::Status status_;
  std::unique_ptr<grpc::Server> server_;
};

std::unique_ptr<Store> open(Desk& desk, std::vector<std::string> endpoints) {
  auto store = make_etcd_store(desk.context, {.endpoints = std::move(endpoints), .prefix = "p/"});
  store->start({});
  return store;
}

}  // namespace

TEST_CASE("an error that etcd gives while a member ends or loses the lead asks for a repetition") {
  const auto code = GENERATE(StatusCode::UNKNOWN, StatusCode::INTERNAL, StatusCode::CANCELLED,
                             StatusCode::ABORTED, StatusCode::UNAVAILABLE);
  Desk desk;
  const Member member({code, "raft proposal dropped"});
  const auto store = open(desk, {member.endpoint});
  const auto read = desk.get(*store, "k");
  REQUIRE_FALSE(read);
  CHECK(read.error().code == ErrorCode::kUnavailable);
  CHECK_THAT(read.error().message, Contains("raft proposal dropped") && Contains(member.endpoint));
  const auto changed = desk.commit(*store, {{}, {{"k", "v", false}}, {}});
  REQUIRE_FALSE(changed);
  CHECK(changed.error().code == ErrorCode::kUnavailable);
}

TEST_CASE("a read goes on to the next member when one fails without being gone") {
  Desk desk;
  const Member faulty({StatusCode::UNKNOWN, "raft: stopped"});
  const Member sound(grpc::Status::OK);
  for (int count = 0; count < 10; ++count) {  // each store chooses its first member at random
    const auto store = open(desk, {faulty.endpoint, sound.endpoint});
    const auto read = desk.get(*store, "k");
    REQUIRE(read);
    CHECK(read->revision == 7);
  }
}

TEST_CASE("an error that repetition does not mend stays an error") {
  const auto code = GENERATE(StatusCode::UNIMPLEMENTED, StatusCode::INVALID_ARGUMENT);
  Desk desk;
  const Member member({code, "this is no etcd"});
  const auto store = open(desk, {member.endpoint});
  const auto read = desk.get(*store, "k");
  REQUIRE_FALSE(read);
  CHECK(read.error().code != ErrorCode::kUnavailable);
}

}  // namespace pbox::cluster::etcd_faults_test
