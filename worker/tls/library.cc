// The function that libpbox looks up in this library.
#include <cstdio>

#include "nic/crypto/session_keys.h"
#include "nic/tls/credentials.h"
#include "worker/transport/tls_library.h"

namespace {

class FolderKeys final : public pbox::worker::WorkerKeys {
 public:
  explicit FolderKeys(std::unique_ptr<const pbox::tls::Credentials> credentials)
      : credentials_(std::move(credentials)) {}

  std::unique_ptr<pbox::tls::Connection> connect(const std::string& box) const override {
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
  std::unique_ptr<const pbox::tls::Credentials> credentials_;
};

}  // namespace

extern "C" PBOX_LIBRARY_EXPORT const pbox::worker::WorkerKeys* pbox_tls_open_1(
    const pbox::worker::LibraryRequest& request, char* error, size_t error_bytes) {
  if (pbox::worker::refuse_other_release(request, error, error_bytes)) return nullptr;
  auto credentials = pbox::tls::Credentials::load(request.arguments);
  if (credentials) return new FolderKeys(std::move(*credentials));
  std::snprintf(error, error_bytes, "%s", credentials.error().message.c_str());
  return nullptr;
}
