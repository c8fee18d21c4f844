#include "appliance/cluster/etcd_store.h"

#include <boost/asio/post.hpp>
#include <optional>

#include "appliance/cluster/etcd_session.h"
#include "appliance/cluster/etcd_space.h"
#include "appliance/cluster/etcd_watch.h"
#include "base/check.h"

namespace pbox::cluster {
namespace {

class EtcdStore : public Store {
 public:
  EtcdStore(boost::asio::io_context& context, const EtcdOptions& options)
      : options_(options), client_(context, options) {}
  ~EtcdStore() override { *alive_ = false; }

  void start(Observer observer) override;
  void get(const std::string& prefix, std::function<void(Result<Snapshot>)> done) override {
    get(prefix, client_.member_count(), done);
  }
  void commit(Transaction transaction, std::function<void(Result<Outcome>)> done) override;
  std::unique_ptr<Watch> watch(const std::string& prefix, int64_t revision,
                               WatchHandler handler) override {
    return std::make_unique<EtcdWatch>(client_, options_.prefix + prefix, options_.prefix.size(),
                                       revision, std::move(handler));
  }
  int64_t session() const override { return session_ ? session_->lease() : 0; }
  const Health& health() const override { return client_.health(); }

 private:
  void get(const std::string& prefix, size_t attempts,
           const std::function<void(Result<Snapshot>)>& done);
  void refuse(const Error& error, std::function<void(Result<Outcome>)> done);
  etcdserverpb::TxnRequest to_etcd(const Transaction& transaction) const;

  EtcdOptions options_;
  Observer observer_;
  EtcdClient client_;
  std::optional<EtcdSession> session_;
  std::optional<EtcdSpace> space_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

void EtcdStore::start(Observer observer) {
  PBOX_CHECK(!session_);
  observer_ = std::move(observer);
  client_.on_health = observer_.on_health;
  const std::chrono::seconds ttl(options_.lease_ttl_s);
  session_.emplace(client_, ttl, observer_.on_session);
  space_.emplace(client_, std::chrono::milliseconds(ttl) / 3);
}

// A read may be repeated safely, so every member is asked before the read fails.
void EtcdStore::get(const std::string& prefix, size_t attempts,
                    const std::function<void(Result<Snapshot>)>& done) {
  etcdserverpb::RangeRequest request;
  request.set_key(options_.prefix + prefix);
  request.set_range_end(range_end(options_.prefix + prefix));
  client_.call<etcdserverpb::RangeResponse>(
      Operation::kGet,
      [this, request](const EtcdClient::Member& member, grpc::ClientContext& context) {
        return member.kv->AsyncRange(&context, request, client_.loop().queue());
      },
      [=, this, asked = client_.current()](const grpc::Status& status,
                                           const etcdserverpb::RangeResponse& response) {
        if (is_transient(status) && attempts > 1) return get(prefix, attempts - 1, done);
        if (!status.ok()) return done(client_.error(Operation::kGet, asked, status));
        Snapshot snapshot{{}, response.header().revision()};
        for (const auto& kv : response.kvs()) {
          snapshot.entries.push_back({kv.key().substr(options_.prefix.size()), kv.value(),
                                      kv.create_revision(), kv.mod_revision(), kv.lease()});
        }
        done(std::move(snapshot));
      });
}

etcdserverpb::TxnRequest EtcdStore::to_etcd(const Transaction& transaction) const {
  etcdserverpb::TxnRequest request;
  for (const Condition& condition : transaction.conditions) {
    auto& compare = *request.add_compare();
    compare.set_target(etcdserverpb::Compare::MOD);
    compare.set_key(options_.prefix + condition.key);
    compare.set_mod_revision(condition.mod_revision);
  }
  for (const Put& put : transaction.puts) {
    auto& change = *request.add_success()->mutable_request_put();
    change.set_key(options_.prefix + put.key);
    change.set_value(put.value);
    if (!put.ephemeral) continue;
    PBOX_CHECK(session() != 0);  // lease 0 would make the key permanent
    change.set_lease(session());
  }
  for (const std::string& key : transaction.deletes) {
    request.add_success()->mutable_request_delete_range()->set_key(options_.prefix + key);
  }
  return request;
}

void EtcdStore::refuse(const Error& error, std::function<void(Result<Outcome>)> done) {
  boost::asio::post(client_.context(), [alive = alive_, error, done = std::move(done)] {
    if (*alive) done(error);
  });
}

void EtcdStore::commit(Transaction transaction, std::function<void(Result<Outcome>)> done) {
  if (const Status valid = check(transaction); !valid) {
    return refuse(valid.error(), std::move(done));
  }
  const bool puts = !transaction.puts.empty();
  bool is_ephemeral = false;
  for (const Put& put : transaction.puts) is_ephemeral |= put.ephemeral;
  if (is_ephemeral && session() == 0) {
    return refuse(
        {ErrorCode::kUnavailable, "etcd has not granted a lease yet, or the lease has expired"},
        std::move(done));
  }
  client_.call<etcdserverpb::TxnResponse>(
      Operation::kCommit,
      [this, request = to_etcd(transaction)](const EtcdClient::Member& member,
                                             grpc::ClientContext& context) {
        return member.kv->AsyncTxn(&context, request, client_.loop().queue());
      },
      [=, this, asked = client_.current()](const grpc::Status& status,
                                           const etcdserverpb::TxnResponse& response) {
        // A full etcd still accepts transactions that only delete.
        if (!status.ok() || puts) space_->on_change(status);
        if (status.ok()) return done(Outcome{response.succeeded(), response.header().revision()});
        if (is_ephemeral && status.error_code() == grpc::StatusCode::NOT_FOUND) session_->lost();
        done(client_.error(Operation::kCommit, asked, status));
      });
}

}  // namespace

std::unique_ptr<Store> make_etcd_store(boost::asio::io_context& context,
                                       const EtcdOptions& options) {
  return std::make_unique<EtcdStore>(context, options);
}

}  // namespace pbox::cluster
