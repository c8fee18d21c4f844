#include "nic/tls/token.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/check.h"
#include "nic/tls/pem.h"

namespace pbox::tls {
namespace {

constexpr std::string_view kPrefix = "pbox-token-1.";
constexpr size_t kDigestBytes = 32;

// Text that holds a private key.
struct Secret {
  std::string text;
  ~Secret() { OPENSSL_cleanse(text.data(), text.size()); }
};

unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

std::string digest_of(std::string_view files) {
  std::string digest(kDigestBytes, '\0');
  size_t bytes = 0;
  PBOX_CHECK(EVP_Q_digest(nullptr, "SHA256", nullptr, files.data(), files.size(), bytes_of(digest),
                          &bytes) == 1);
  PBOX_CHECK(bytes == kDigestBytes);
  return digest;
}

std::string encode(const std::string& bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL adds a zero
  const int count =
      EVP_EncodeBlock(bytes_of(text), reinterpret_cast<const unsigned char*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(count));
  text.erase(text.find_last_not_of('=') + 1);
  std::replace(text.begin(), text.end(), '+', '-');
  std::replace(text.begin(), text.end(), '/', '_');
  return text;
}

// Returns "" if the text is not base64url.
std::string decode(std::string_view text) {
  const bool is_plain = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
  });
  if (!is_plain || text.size() % 4 == 1) return "";
  const size_t padding = (4 - text.size() % 4) % 4;
  Secret padded{std::string(text.size() + padding, '=')};  // a text that grows would leave a copy
  std::copy(text.begin(), text.end(), padded.text.begin());
  std::replace(padded.text.begin(), padded.text.end(), '-', '+');
  std::replace(padded.text.begin(), padded.text.end(), '_', '/');
  std::string bytes(padded.text.size() / 4 * 3, '\0');
  const int count =
      EVP_DecodeBlock(bytes_of(bytes), bytes_of(padded.text), static_cast<int>(padded.text.size()));
  PBOX_CHECK(count == static_cast<int>(bytes.size()));
  bytes.resize(bytes.size() - padding);
  return bytes;
}

// Returns false if the text is not that of three or four files.
bool split(std::string_view text, KeyFiles& keys) {
  std::vector<std::string_view> files;
  for (size_t end; (end = text.find('\0')) != std::string_view::npos;) {
    files.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  files.push_back(text);
  if (files.size() != 3 && files.size() != 4) return false;
  keys.authorities = files[0];
  keys.certificate = files[1];
  keys.key = files[2];
  if (files.size() == 4) keys.revocations = files[3];
  return true;
}

Result<KeyFiles> read_token(const std::string& path) {
  auto read = read_private_file(path);
  if (!read) return read.error();
  const Secret file{std::move(*read)};
  const auto invalid = [&](const char* what) {
    return Error{ErrorCode::kInvalidArgument, path + what};
  };
  if (!may_be_token(file.text)) {
    return invalid(
        " is neither a folder of keys nor a token; name the folder, or make a token with `pboxctl "
        "keys token`");
  }
  std::string_view text(file.text);
  text.remove_prefix(kPrefix.size());
  text = text.substr(0, text.find_last_not_of(" \r\n") + 1);
  const Secret body{decode(text)};
  KeyFiles keys;
  keys.path = path;
  keys.is_token = true;
  if (body.text.size() < kDigestBytes ||
      !body.text.starts_with(digest_of(std::string_view(body.text).substr(kDigestBytes))) ||
      !split(std::string_view(body.text).substr(kDigestBytes), keys)) {
    return invalid(
        " is a damaged token; copy it again, or make a new one with `pboxctl keys token`");
  }
  return keys;
}

Result<KeyFiles> read_folder(const std::string& path) {
  KeyFiles keys;
  keys.path = path;
  auto authorities = read_pem_file(keys.name_of("ca.pem"));
  if (!authorities) return authorities.error();
  keys.authorities = std::move(*authorities);
  const std::string lists = keys.name_of("crl.pem");
  if (access(lists.c_str(), F_OK) == 0 || errno != ENOENT) {
    auto revocations = read_pem_file(lists);
    if (!revocations) return revocations.error();
    keys.revocations = std::move(*revocations);
  }
  auto certificate = read_pem_file(keys.name_of("cert.pem"));
  if (!certificate) return certificate.error();
  keys.certificate = std::move(*certificate);
  auto key = read_private_file(keys.name_of("key.pem"));
  if (!key) return key.error();
  keys.key = std::move(*key);
  return keys;
}

}  // namespace

KeyFiles::~KeyFiles() {
  OPENSSL_cleanse(key.data(), key.size());
}

std::string KeyFiles::name_of(const std::string& file) const {
  return is_token ? file + " in the token " + path : path + "/" + file;
}

Result<KeyFiles> read_key_files(const std::string& path) {
  struct stat facts {};
  const bool is_token = stat(path.c_str(), &facts) == 0 && !S_ISDIR(facts.st_mode);
  return is_token ? read_token(path) : read_folder(path);
}

std::string make_token(const KeyFiles& files) {
  const std::string separator(1, '\0');
  Secret body;
  body.text = files.authorities + separator + files.certificate + separator + files.key;
  if (files.revocations) body.text += separator + *files.revocations;
  body.text.insert(0, digest_of(body.text));
  return std::string(kPrefix) + encode(body.text);
}

bool may_be_token(std::string_view text) {
  return text.starts_with(kPrefix);
}

}  // namespace pbox::tls
