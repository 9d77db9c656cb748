// src/base/npy.cpp
// Reads and writes .npy files: magic, version, header length, a header that is one Python
// dictionary with three known keys, then the numbers.
#include "base/npy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/files.h"
#include "base/int_math.h"

namespace keyhole {

namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeaderBytes = 65536;
constexpr size_t kMaxDims = 8;
constexpr size_t kAlignment =
    64;  // numpy pads headers so that the numbers begin on such a multiple

struct DTypeBytes {
  std::string_view name;
  int64_t bytes;
};
constexpr DTypeBytes kDTypes[] = {
    {"|b1", 1}, {"|i1", 1}, {"|u1", 1}, {"<i2", 2}, {"<u2", 2}, {"|V2", 2}, {"<f2", 2},
    {"<i4", 4}, {"<u4", 4}, {"<f4", 4}, {"<i8", 8}, {"<u8", 8}, {"<f8", 8},
};

struct Header {
  std::string dtype;
  bool is_fortran = false;  // the first index moves fastest: column order
  std::vector<int64_t> shape;
  size_t data_begin = 0;   // offset in the file
  int64_t data_bytes = 0;  // expected after the header
};

void check_dtype(const std::string& dtype, const std::string& name) {
  if (npy_item_bytes(dtype) > 0) return;
  KEYHOLE_CHECK(!dtype.starts_with("|O") && dtype != "O", name,
                ": holds Python objects, which are never unpickled here; save an array of numbers");
  KEYHOLE_CHECK(!dtype.starts_with('>'), name, ": is big-endian (\"", dtype,
                "\"); save it with array.astype(\"<", dtype.substr(1), "\")");
  std::string accepted;
  for (const DTypeBytes& row : kDTypes)
    accepted += (accepted.empty() ? "" : " ") + std::string(row.name);
  throw Error(ErrorKind::usage,
              say(name, ": dtype \"", dtype, "\" is not accepted; these are: ", accepted));
}

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }: only these keys and these kinds of
// values. Every failure gives the same sentence with the position.
class HeaderParser {
 public:
  HeaderParser(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  Header parse() {
    std::optional<std::string> dtype;
    std::optional<bool> is_fortran;
    std::optional<std::vector<int64_t>> shape;
    expect('{');
    while (!take('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr" && !dtype) {
        KEYHOLE_CHECK(!peek('['), name_,
                      ": has named fields (a structured dtype); save each field as "
                      "an array of its own");
        dtype = string();
      } else if (key == "fortran_order" && !is_fortran) {
        is_fortran = boolean();
      } else if (key == "shape" && !shape) {
        shape = tuple();
      } else {
        fail("one each of 'descr', 'fortran_order' and 'shape'");
      }
      if (!take(',') && !peek('}')) fail("\",\" or \"}\"");
    }
    skip_blanks();
    if (at_ != text_.size()) fail("the end of the header");
    if (!dtype || !is_fortran || !shape) fail("'descr', 'fortran_order' and 'shape'");
    return {.dtype = std::move(*dtype), .is_fortran = *is_fortran, .shape = std::move(*shape)};
  }

 private:
  [[noreturn]] void fail(const std::string& expected) const {
    throw Error(ErrorKind::usage, say(name_, ": is not a valid .npy file: expected ", expected,
                                      " at byte ", at_, " of its header"));
  }
  void skip_blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool peek(char c) {
    skip_blanks();
    return at_ < text_.size() && text_[at_] == c;
  }
  bool take(char c) {
    const bool is_there = peek(c);
    at_ += is_there ? 1 : 0;
    return is_there;
  }
  void expect(char c) {
    if (!take(c)) fail({'"', c, '"'});
  }
  bool take_word(std::string_view word) {
    skip_blanks();
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }

  std::string string() {
    const char quote = peek('"') ? '"' : '\'';
    if (!take(quote)) fail("a string");
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != quote) {
      if (text_[at_] < ' ' || text_[at_] > '~' || text_[at_] == '\\' || at_ - begin > 32) {
        fail("a short plain string");
      }
      ++at_;
    }
    std::string content(text_.substr(begin, at_ - begin));
    expect(quote);
    return content;
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) fail("True or False");
    return false;
  }

  // (), (3,) or (3, 4): the comma makes a single number a tuple.
  std::vector<int64_t> tuple() {
    std::vector<int64_t> numbers;
    expect('(');
    while (!take(')')) {
      numbers.push_back(number());
      if (!take(',') && (numbers.size() == 1 || !peek(')'))) fail("\",\"");
      KEYHOLE_CHECK(numbers.size() <= kMaxDims, name_, ": has more than ", kMaxDims,
                    " dimensions; at most ", kMaxDims, " are read");
    }
    return numbers;
  }

  int64_t number() {
    skip_blanks();
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      const bool overflows = __builtin_mul_overflow(value, 10, &value) ||
                             __builtin_add_overflow(value, text_[at_] - '0', &value);
      KEYHOLE_CHECK(!overflows, name_, ": a dimension does not fit 64 bits");
      ++at_;
    }
    if (at_ == begin) fail("a whole number");
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
};

uint32_t little_endian(std::span<const std::byte> bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | uint32_t(bytes[i]);
  return value;
}

// bytes: the whole file. Exactly as much data as the header announces must follow it.
Header parse_header(std::span<const std::byte> bytes, const std::string& name) {
  KEYHOLE_CHECK(!bytes.empty(), name, ": is empty; expected a .npy file");
  KEYHOLE_CHECK(bytes.size() >= 10 && std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) == 0,
                name, ": is not a .npy file; it does not begin with \\x93NUMPY");
  const int major = int(bytes[6]), minor = int(bytes[7]);
  KEYHOLE_CHECK(major >= 1 && major <= 3 && minor == 0, name, ": is .npy version ", major, ".",
                minor, "; versions 1.0, 2.0 and 3.0 are read");
  const size_t length_bytes = major == 1 ? 2 : 4, begin = 8 + length_bytes;
  KEYHOLE_CHECK(bytes.size() >= begin, name, ": ends inside its header");
  const size_t length = little_endian(bytes.subspan(8, length_bytes));
  KEYHOLE_CHECK(length <= kMaxHeaderBytes, name, ": has a header of ", length, " bytes; at most ",
                kMaxHeaderBytes, " are read");
  KEYHOLE_CHECK(bytes.size() - begin >= length, name, ": ends inside its header");
  const auto* text = reinterpret_cast<const char*>(bytes.data() + begin);
  Header header = HeaderParser({text, length}, name).parse();
  check_dtype(header.dtype, name);
  header.data_begin = begin + length;
  header.data_bytes = npy_item_bytes(header.dtype);
  // An empty dimension makes the product 0 whatever the others are. They are still checked, because
  // other code multiplies them in another order.
  int64_t checked = header.data_bytes;
  for (const int64_t size : header.shape) {
    KEYHOLE_CHECK(!__builtin_mul_overflow(checked, std::max<int64_t>(size, 1), &checked), name,
                  ": its shape has more bytes than 64 bits can count");
    header.data_bytes *= size;
  }
  const uint64_t expected = uint64_t(header.data_bytes), found = bytes.size() - header.data_begin;
  KEYHOLE_CHECK(found >= expected, name, ": is cut short: its header announces ", expected,
                " bytes of numbers, and ", found, " follow");
  KEYHOLE_CHECK(found == expected, name, ": its header announces ", expected,
                " bytes of numbers, but ", found, " follow");
  return header;
}

std::string header_text(const std::string& dtype, std::span<const int64_t> shape) {
  std::string text = "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': (";
  for (const int64_t size : shape) text += std::to_string(size) + (shape.size() == 1 ? "," : ", ");
  if (shape.size() > 1) text.resize(text.size() - 2);
  text += "), }";
  const size_t used = kMagic.size() + 4 + text.size() + 1;
  text.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  return text + '\n';
}

// Numbers in column order, put into row order. Tile by tile over the first and the last index,
// which are the fastest on either side, so that neither is walked with a stride through all the
// memory.
std::vector<std::byte> in_row_order(std::span<const std::byte> columns,
                                    const std::vector<int64_t>& shape, int64_t item) {
  std::vector<std::byte> rows(columns.size());
  if (columns.empty()) return rows;
  constexpr int64_t kTile = 32;
  const size_t last = shape.size() - 1;
  std::vector<int64_t> step_in(shape.size()), step_out(shape.size());  // in bytes
  for (size_t d = 0; d <= last; ++d) step_in[d] = d == 0 ? item : step_in[d - 1] * shape[d - 1];
  for (size_t d = last + 1; d-- > 0;)
    step_out[d] = d == last ? item : step_out[d + 1] * shape[d + 1];
  const auto copy_plane = [&](int64_t in, int64_t out) {
    for (int64_t i0 = 0; i0 < shape[0]; i0 += kTile) {
      for (int64_t j0 = 0; j0 < shape[last]; j0 += kTile) {
        for (int64_t i = i0; i < std::min(i0 + kTile, shape[0]); ++i) {
          for (int64_t j = j0; j < std::min(j0 + kTile, shape[last]); ++j) {
            std::memcpy(rows.data() + out + i * step_out[0] + j * step_out[last],
                        columns.data() + in + i * step_in[0] + j * step_in[last], size_t(item));
          }
        }
      }
    }
  };
  // The indices between the first and the last, counted up like an odometer.
  std::vector<int64_t> middle(shape.size(), 0);
  for (bool is_done = false; !is_done;) {
    int64_t in = 0, out = 0;
    for (size_t d = 1; d < last; ++d) in += middle[d] * step_in[d], out += middle[d] * step_out[d];
    copy_plane(in, out);
    size_t d = 1;
    while (d < last && ++middle[d] == shape[d]) middle[d++] = 0;
    is_done = d >= last;
  }
  return rows;
}

NpyArray array_of(Header header, std::vector<std::byte> numbers) {
  if (header.is_fortran && header.shape.size() > 1) {
    numbers = in_row_order(numbers, header.shape, npy_item_bytes(header.dtype));
  }
  return {std::move(header.dtype), std::move(header.shape), std::move(numbers)};
}

}  // namespace

int64_t npy_item_bytes(const std::string& dtype) {
  const auto* found = std::ranges::find(kDTypes, std::string_view(dtype), &DTypeBytes::name);
  return found == std::end(kDTypes) ? 0 : found->bytes;
}

NpyArray parse_npy(std::span<const std::byte> bytes, const std::string& name) {
  Header header = parse_header(bytes, name);
  const auto numbers = bytes.subspan(header.data_begin);
  return array_of(std::move(header), {numbers.begin(), numbers.end()});
}

NpyArray read_npy(const std::string& path) {
  try {
    std::vector<std::byte> bytes = read_file(path, std::numeric_limits<int64_t>::max());
    Header header = parse_header(bytes, path);
    bytes.erase(bytes.begin(), bytes.begin() + std::ptrdiff_t(header.data_begin));
    return array_of(std::move(header), std::move(bytes));
  } catch (const std::bad_alloc&) {
    throw Error(ErrorKind::usage, say("cannot read ", path, ": it is larger than the memory"));
  }
}

std::string npy_file(const std::string& dtype, std::span<const int64_t> shape,
                     std::span<const std::byte> bytes) {
  int64_t expected = npy_item_bytes(dtype);
  KEYHOLE_ASSERT(expected > 0, "npy_file: dtype \"", dtype, "\"");
  for (const int64_t size : shape) expected = checked_mul(expected, size, "npy_file: shape");
  KEYHOLE_ASSERT(shape.size() <= kMaxDims && expected == int64_t(bytes.size()),
                 "npy_file: ", bytes.size(), " bytes for a shape of ", expected);
  const std::string header = header_text(dtype, shape);
  std::string file(kMagic);
  file += {1, 0, char(header.size() & 0xff), char(header.size() >> 8)};
  file += header;
  file.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return file;
}

void write_npy(const std::string& path, const std::string& dtype, std::span<const int64_t> shape,
               std::span<const std::byte> bytes) {
  const std::string file = npy_file(dtype, shape, bytes);
  write_file(path, std::as_bytes(std::span(file)));
}

}  // namespace keyhole
