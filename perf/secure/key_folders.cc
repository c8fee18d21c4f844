#include "perf/secure/key_folders.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "nic/tls/authority.h"

namespace pbox::perf {
namespace {

constexpr char kBox[] = "pbox://perf/box/box";
constexpr char kKeyWorkers[] = "pbox://perf/tenant/perf/job/*/rank/*";
constexpr int64_t kDay = 24 * 3600;

void write(const std::string& file, const std::string& text, mode_t mode) {
  std::ofstream out(file);
  if (chmod(file.c_str(), mode) != 0 || !(out << text)) {
    throw std::runtime_error("cannot write " + file);
  }
}

void write_keys(const std::string& folder, const tls::KeyPair& authority, const std::string& uri,
                const tls::Validity& validity) {
  const auto issued =
      tls::issue(authority, {.uris = {uri}, .serves = uri == kBox, .validity = validity});
  if (!issued) throw std::runtime_error(issued.error().message);
  std::filesystem::create_directory(folder);
  write(folder + "/ca.pem", authority.certificate, 0644);
  write(folder + "/cert.pem", issued->certificate, 0644);
  write(folder + "/key.pem", issued->key, 0600);
}

}  // namespace

KeyFolders::KeyFolders() {
  path_ = (std::filesystem::temp_directory_path() / "pbox-perf-keys-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder for keys");
  const int64_t now = std::time(nullptr);
  const tls::Validity validity{.from_unix_s = now - kDay, .to_unix_s = now + 30 * kDay};
  const tls::KeyPair authority = tls::make_authority("perf", validity);
  write_keys(box(), authority, kBox, validity);
  write_keys(path_ + "/workers", authority, kKeyWorkers, validity);
}

KeyFolders::~KeyFolders() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> KeyFolders::box_flags(seal::Suite suite) const {
  if (suite == seal::Suite::kNone) return {};
  return {"--box.name=box", "--security.keys=" + box(), "--security.insecure=auto",
          "--security.insecure_off_loopback=false",
          suite == seal::Suite::kGcm256 ? "--security.encrypt=true" : "--security.encrypt=false"};
}

std::string KeyFolders::workers(seal::Suite suite) const {
  return suite == seal::Suite::kNone ? "" : path_ + "/workers";
}

}  // namespace pbox::perf
