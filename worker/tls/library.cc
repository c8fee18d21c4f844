// The function that libpbox looks up in this library.
#include <cstdio>
#include <ctime>
#include <mutex>

#include "base/check.h"
#include "nic/crypto/session_keys.h"
#include "nic/tls/credentials.h"
#include "nic/tls/key_stamp.h"
#include "worker/transport/tls_library.h"

namespace {

// Stands in for a connection for which there are no valid keys.
class NoConnection final : public pbox::tls::Connection {
 public:
  explicit NoConnection(const pbox::Error& why) : why_(why) {}

  pbox::Status receive(std::string_view, std::string&, std::string&) override { return why_; }
  pbox::Status send(std::string_view, std::string&) override { return why_; }
  bool is_established() const override { return false; }
  const pbox::tls::Identity& peer() const override { return none_; }
  std::string peer_certificates() const override { return ""; }
  void export_secret(std::span<const std::byte>,
                     std::span<std::byte, pbox::tls::kExportedSecretBytes>) const override {
    PBOX_CHECK(false);
  }

 private:
  pbox::Error why_;
  pbox::tls::Identity none_;
};

// Reads the files again for a new connection if they have changed, so that keys can be renewed
// while a job runs. If the new files cannot be used, perhaps because they are being copied, the
// former keys serve until they expire.
class RenewedKeys final : public pbox::worker::WorkerKeys {
 public:
  RenewedKeys(std::string path, pbox::tls::KeyStamp stamp,
              std::unique_ptr<const pbox::tls::Credentials> credentials)
      : path_(std::move(path)), stamp_(stamp), credentials_(std::move(credentials)) {}

  std::unique_ptr<pbox::tls::Connection> connect(const std::string& box) const override {
    const std::lock_guard lock(mutex_);
    const pbox::Status current = read_again();
    if (!current && credentials_->expires_unix_s() <= std::time(nullptr)) {
      return std::make_unique<NoConnection>(current.error());
    }
    return credentials_->connect(box);
  }
  std::unique_ptr<pbox::seal::SessionKeys> session_keys(
      const pbox::tls::Connection& connection) const override {
    const auto exporter = [&connection](std::span<const std::byte> context,
                                        pbox::crypto::TrafficSecret& secret) {
      connection.export_secret(context, secret.bytes);
      return true;
    };
    return pbox::crypto::make_session_keys(pbox::crypto::End::kWorker, exporter,
                                           std::make_shared<pbox::crypto::SecretPages>());
  }

 private:
  pbox::Status read_again() const {
    const auto stamp = pbox::tls::stamp_of(path_);
    if (stamp == stamp_) return pbox::ok_status();
    auto credentials = pbox::tls::Credentials::load(path_);
    if (!credentials) return credentials.error();
    credentials_ = std::move(*credentials);
    stamp_ = stamp;
    return pbox::ok_status();
  }

  const std::string path_;
  mutable std::mutex mutex_;
  mutable pbox::tls::KeyStamp stamp_;  // taken before the files were read
  mutable std::unique_ptr<const pbox::tls::Credentials> credentials_;
};

}  // namespace

extern "C" PBOX_LIBRARY_EXPORT const pbox::worker::WorkerKeys* pbox_tls_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  const auto stamp = pbox::tls::stamp_of(request.arguments);
  auto credentials = pbox::tls::Credentials::load(request.arguments);
  if (credentials) return new RenewedKeys(request.arguments, stamp, std::move(*credentials));
  std::snprintf(error, error_bytes, "%s", credentials.error().message.c_str());
  return nullptr;
}
