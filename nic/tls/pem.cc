#include "nic/tls/pem.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/check.h"

namespace pbox::tls {
namespace {

constexpr size_t kFileBytesMax = 1u << 20;

Error unreadable(const std::string& path, int error_number) {
  return system_error("cannot read " + path + " (`pboxctl keys --help` says how to make keys)",
                      error_number);
}

// Leaves no copy of what it has read, which may be a key, but the returned one.
Result<std::string> read_all(int fd, const std::string& path) {
  std::array<char, 4096> buffer;
  std::string text;
  text.reserve(kFileBytesMax + buffer.size());  // a text that grows would leave copies
  ssize_t bytes = 0;
  int error_number = 0;
  do {
    bytes = read(fd, buffer.data(), buffer.size());
    error_number = errno;
    if (bytes > 0) text.append(buffer.data(), static_cast<size_t>(bytes));
  } while (text.size() <= kFileBytesMax && (bytes > 0 || (bytes < 0 && error_number == EINTR)));
  OPENSSL_cleanse(buffer.data(), buffer.size());
  if (bytes == 0) return text;
  OPENSSL_cleanse(text.data(), text.size());
  if (bytes < 0) return unreadable(path, error_number);
  return Error{ErrorCode::kInvalidArgument,
               path + " is larger than 1 MiB; name a PEM file made by `pboxctl keys`"};
}

// Returns the mode bits that a private file must not have. Credentials of systemd and secrets of
// Kubernetes belong to root, and the service may read them by their group or by an access list,
// whose mask stands in the group's bits.
mode_t forbidden_to_others(const struct stat& facts) {
  return facts.st_uid == 0 ? 037 : 077;
}

// Checks the mode of the file that is open, so that no other file can be put in its place before it
// is read.
Result<std::string> read_file(const std::string& path, bool is_private) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return unreadable(path, errno);
  struct stat facts {};
  Result<std::string> text = Error{};
  if (fstat(fd, &facts) != 0) {
    text = unreadable(path, errno);
  } else if (is_private && (facts.st_mode & forbidden_to_others(facts)) != 0) {
    std::array<char, 8> mode;
    std::snprintf(mode.data(), mode.size(), "%04o", facts.st_mode & 07777);
    text = Error{ErrorCode::kInvalidArgument,
                 path + " has mode " + mode.data() +
                     ", so users other than its owner can access the key; run `chmod 600 " + path +
                     "`"};
  } else {
    text = read_all(fd, path);
  }
  close(fd);
  return text;
}

Owned<BIO> open_text(const std::string& pem) {
  Owned<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  PBOX_CHECK(bio != nullptr);
  return bio;
}

// Returns all objects in the text; none if one of them cannot be parsed.
template <typename T, typename Read>
std::vector<Owned<T>> parse_all(const std::string& pem, Read read) {
  const auto bio = open_text(pem);
  std::vector<Owned<T>> parsed;
  ERR_clear_error();
  while (Owned<T> next{read(bio.get(), nullptr, nullptr, nullptr)}) {
    parsed.push_back(std::move(next));
  }
  const bool is_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (!is_end) parsed.clear();
  return parsed;
}

// A callback without which OpenSSL would ask for the password of an encrypted key on the terminal.
int no_password(char* /*buffer*/, int /*size*/, int /*writes*/, void* /*user*/) {
  return -1;
}

}  // namespace

std::string bytes_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<size_t>(ASN1_STRING_length(text))};
}

Owned<GENERAL_NAMES> alternative_names(const X509* certificate) {
  Owned<GENERAL_NAMES> names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  ERR_clear_error();  // a certificate without such names leaves one
  return names;
}

std::string take_openssl_error() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  const std::string text = reason == nullptr ? "unknown error" : reason;
  ERR_clear_error();
  return text;
}

Result<std::string> read_pem_file(const std::string& path) {
  return read_file(path, false);
}

Result<std::string> read_private_file(const std::string& path) {
  return read_file(path, true);
}

std::vector<Owned<X509>> parse_certificates(const std::string& pem) {
  auto certificates = parse_all<X509>(pem, PEM_read_bio_X509);
  for (const auto& certificate : certificates) {
    if (ASN1_TIME_check(X509_get0_notBefore(certificate.get())) == 1 &&
        ASN1_TIME_check(X509_get0_notAfter(certificate.get())) == 1) {
      continue;
    }
    certificates.clear();
    break;
  }
  return certificates;
}

std::vector<Owned<X509_CRL>> parse_revocation_lists(const std::string& pem) {
  return parse_all<X509_CRL>(pem, PEM_read_bio_X509_CRL);
}

Owned<EVP_PKEY> parse_private_key(const std::string& pem) {
  const auto bio = open_text(pem);
  Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  return key;
}

std::string pem_text(const X509* certificate) {
  const Owned<BIO> bio(BIO_new(BIO_s_mem()));
  PBOX_CHECK(bio != nullptr && PEM_write_bio_X509(bio.get(), certificate) == 1);
  return take_text(bio.get());
}

std::string take_text(BIO* bio) {
  char* bytes = nullptr;
  const long count = BIO_get_mem_data(bio, &bytes);
  PBOX_CHECK(count > 0);
  return {bytes, static_cast<size_t>(count)};
}

int64_t unix_seconds_of(const ASN1_TIME* time) {
  tm parts{};
  PBOX_CHECK(ASN1_TIME_to_tm(time, &parts) == 1);
  return timegm(&parts);
}

std::string fingerprint_of(const X509* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned bytes = 0;
  PBOX_CHECK(X509_digest(certificate, EVP_sha256(), digest.data(), &bytes) == 1);
  std::string text;
  for (unsigned index = 0; index < bytes; ++index) {
    std::array<char, 3> pair;
    std::snprintf(pair.data(), pair.size(), "%02x", digest[index]);
    text += pair.data();
  }
  return text;
}

}  // namespace pbox::tls
