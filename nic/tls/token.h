// Reads keys from a folder of files (credentials.h) or from a token, which is one file that holds
// the same files as one line of text. A token fits a secret store that hands out single values.
//
//   pbox-token-1.BASE64URL(SHA-256(files) files), files = ca.pem 0 cert.pem 0 key.pem [0 crl.pem]
//
// A token holds the private key, so anyone who can read the file has the keys. Its mode must be as
// strict as that of key.pem. Set-up thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace pbox::tls {

// Move-only; wipes the private key from memory.
struct KeyFiles {
  std::string path;                        // to the folder or to the token
  bool is_token = false;                   // whether `path` is a token
  std::string authorities;                 // ca.pem
  std::string certificate;                 // cert.pem
  std::string key;                         // key.pem
  std::optional<std::string> revocations;  // crl.pem

  KeyFiles() = default;
  KeyFiles(KeyFiles&&) = default;
  KeyFiles& operator=(KeyFiles&&) = default;
  ~KeyFiles();

  // Returns what errors call one of the files.
  std::string name_of(const std::string& file) const;
};

// Reads the folder or the token at `path`. Errors name the file, what is wrong with it, and the
// remedy. The contents of the files are not checked.
Result<KeyFiles> read_key_files(const std::string& path);

// Returns the token of these files, without an end of line. Its text is secret.
std::string make_token(const KeyFiles& files);

// Returns whether the text begins as tokens do.
bool may_be_token(std::string_view text);

}  // namespace pbox::tls
