#include "tests/support/key_folder.h"

#include <openssl/pem.h>
#include <sys/stat.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace pbox::test {

TemporaryFolder::TemporaryFolder() {
  path_ = (std::filesystem::temp_directory_path() / "pbox-keys-XXXXXX").string();
  if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder");
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TemporaryFolder::write(const std::string& name, const std::string& text, unsigned mode) const {
  const std::string file = path_ + "/" + name;
  std::ofstream(file, std::ios::trunc) << text;
  if (chmod(file.c_str(), mode) != 0) throw std::runtime_error("cannot write " + file);
}

tls::Validity valid_for(int64_t seconds) {
  const int64_t now = std::time(nullptr);
  return {.from_unix_s = now - 3600, .to_unix_s = now + seconds};
}

tls::KeyPair authority(const std::string& cluster) {
  return tls::make_authority(cluster, valid_for());
}

tls::KeyPair pem_of(X509* certificate, EVP_PKEY* key) {
  const auto text_of = [](auto write) {
    const tls::Owned<BIO> bio(BIO_new(BIO_s_mem()));
    if (write(bio.get()) != 1) throw std::runtime_error("cannot write PEM");
    char* bytes = nullptr;
    const long count = BIO_get_mem_data(bio.get(), &bytes);
    return std::string(bytes, static_cast<size_t>(count));
  };
  return {.certificate = text_of([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate); }),
          .key = text_of([&](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

KeyFolder::KeyFolder(const tls::KeyPair& signer, const tls::CertificateOrder& order,
                     const std::string& trusted) {
  const auto issued = tls::issue(signer, order);
  if (!issued) throw std::runtime_error(issued.error().message);
  write("ca.pem", trusted, 0644);
  write("cert.pem", issued->certificate, 0644);
  write("key.pem", issued->key);
}

tls::CertificateOrder KeyFolder::order(const std::string& uri, int64_t seconds) {
  return {.uris = {uri},
          .serves = uri.find("/box/") != std::string::npos,
          .validity = valid_for(seconds)};
}

std::shared_ptr<const tls::Credentials> KeyFolder::load() const {
  auto loaded = tls::Credentials::load(path());
  if (!loaded) throw std::runtime_error(loaded.error().message);
  return std::move(*loaded);
}

std::string KeyFolder::token() const {
  const auto files = tls::read_key_files(path());
  if (!files) throw std::runtime_error(files.error().message);
  return tls::make_token(*files);
}

}  // namespace pbox::test
