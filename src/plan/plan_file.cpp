// src/plan/plan_file.cpp
// Plans as files. The checksum detects accidental damage. It proves nothing about who wrote the
// file, so every field is checked even if the checksum is right.
//
//   "khplan\r\n"   8 bytes
//   version        uint32, kVersion
//   byte order     uint32, 0x01020304 as this machine writes it
//   header bytes   uint64
//   header         JSON: pattern, shape, the parts of the split with their patterns as text, tile
//                  shapes, how many entries each array has
//   arrays         raw, in the order of the header, each padded to 8 bytes
//   checksum       uint64, FNV-1a of everything before it
#include "plan/plan_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/files.h"
#include "base/hash.h"
#include "base/int_math.h"
#include "pattern/node.h"
#include "plan/compile.h"
#include "plan/plan_state.h"
#include "plan/residues.h"

namespace keyhole {
namespace {

using Json = nlohmann::json;

constexpr char kMagic[8] = {'k', 'h', 'p', 'l', 'a', 'n', '\r', '\n'};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kByteOrder = 0x01020304;
constexpr size_t kPreamble = 8 + 4 + 4 + 8, kChecksum = 8;
constexpr int64_t kMaxFileBytes = int64_t{8} << 30;
constexpr int64_t kMaxHeaderBytes = 16 << 20;
constexpr size_t kMaxPartTextBytes = kMaxHeaderBytes / 4;  // JSON escapes, the rest of the header

class Writer {
 public:
  template <class T>
  void put(const T& value) {
    put_bytes(&value, sizeof value);
  }
  void put_bytes(const void* data, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), bytes, bytes + size);
  }
  template <class T>
  void put_array(const std::vector<T>& array) {
    put_bytes(array.data(), array.size() * sizeof(T));
    pad();
  }
  void pad() { bytes_.resize(size_t(round_up(int64_t(bytes_.size()), 8))); }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads arrays from the file one after another; never allocates more than the file holds.
class Reader {
 public:
  Reader(std::span<const std::byte> bytes, std::string path)
      : bytes_(bytes), path_(std::move(path)) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, need(sizeof value, "a field"), sizeof value);
    return value;
  }
  std::string take_text(size_t size) {
    return std::string(reinterpret_cast<const char*>(need(size, "the header")), size);
  }
  template <class T>
  std::vector<T> take_array(int64_t count, const char* what) {
    KEYHOLE_CHECK(count >= 0 && size_t(count) <= (bytes_.size() - used_) / sizeof(T), "plan file ",
                  path_, ": truncated: ", what, " should have ", count, " entries but ",
                  bytes_.size() - used_, " bytes are left");
    std::vector<T> array(static_cast<size_t>(count));
    if (count > 0)
      std::memcpy(array.data(), need(array.size() * sizeof(T), what), array.size() * sizeof(T));
    skip_padding();
    return array;
  }
  void skip_padding() {
    const size_t end = size_t(round_up(int64_t(used_), 8));
    need(end - used_, "padding");
  }
  bool at_end() const { return used_ == bytes_.size(); }

 private:
  const std::byte* need(size_t size, const char* what) {
    KEYHOLE_CHECK(size <= bytes_.size() - used_, "plan file ", path_, ": truncated in ", what);
    const std::byte* place = bytes_.data() + used_;
    used_ += size;
    return place;
  }

  std::span<const std::byte> bytes_;
  std::string path_;
  size_t used_ = 0;
};

Json describe(const TileLists& part) {
  return {{"stride", part.stride},
          {"groups", part.groups},
          {"runs", part.runs.size()},
          {"bitmaps", part.num_bitmaps()}};
}

// In a file lists are contiguous; their counts give where each begins.
std::vector<int64_t> begins_of(const std::vector<int32_t>& counts, size_t num_entries,
                               const Source& source) {
  std::vector<int64_t> begins;
  int64_t begin = 0;
  for (const int32_t count : counts) {
    KEYHOLE_CHECK(count >= 0, "plan lists ", source.name, ": a list of ", count, " entries");
    begins.push_back(begin);
    begin += count;
  }
  KEYHOLE_CHECK(begin == int64_t(num_entries), "plan lists ", source.name, ": they hold ", begin,
                " entries, the file ", num_entries);
  return begins;
}

TileLists read_tiles(Reader& reader, const Json& json, const Shape& shape, TileShape tile,
                     const Source& source) {
  TileLists lists;
  lists.q_len = shape.q_len;
  lists.k_len = shape.k_len;
  lists.tile = tile;
  lists.stride = narrow(json.at("stride").get<int64_t>(), "plan file: stride");
  lists.groups = narrow(json.at("groups").get<int64_t>(), "plan file: groups");
  KEYHOLE_CHECK(lists.stride >= 1 && lists.groups >= 1 && shape.q_len >= 1 && shape.k_len >= 1,
                "plan lists ", source.name, ": stride ", lists.stride, ", groups ", lists.groups,
                ", lengths ", shape.q_len, " and ", shape.k_len);
  lists.q_tiles =
      narrow(ceil_div(ceil_div(shape.q_len, lists.stride), tile.q), "plan file: query tiles");
  lists.k_tiles =
      narrow(ceil_div(ceil_div(shape.k_len, lists.stride), tile.k), "plan file: key tiles");
  const int64_t num_lists = checked_mul(lists.groups, lists.lists_per_group(), "plan file: lists");
  lists.group_of = reader.take_array<int32_t>(shape.batch * shape.heads, "group_of");
  lists.list_count = reader.take_array<int32_t>(num_lists, "list_count");
  lists.order = reader.take_array<int32_t>(num_lists, "order");
  lists.runs = reader.take_array<TileRun>(json.at("runs").get<int64_t>(), "runs");
  lists.bitmaps = reader.take_array<uint64_t>(
      checked_mul(json.at("bitmaps").get<int64_t>(), lists.bitmap_words(), "plan file: bitmaps"),
      "bitmaps");
  // Only here, because the file is now known to hold an entry for each of them.
  for (int64_t c = 0; c < lists.stride; ++c) {
    lists.residues.push_back(residue_class(shape, lists.stride, c));
  }
  lists.list_begin = begins_of(lists.list_count, lists.runs.size(), source);
  verify(lists, shape, source);
  return lists;
}

KeyLists read_keys(Reader& reader, const Json& json, const Shape& shape, const Source& source) {
  KeyLists lists;
  lists.q_len = shape.q_len;
  lists.k_len = shape.k_len;
  lists.groups = narrow(json.at("groups").get<int64_t>(), "plan file: groups");
  KEYHOLE_CHECK(lists.groups >= 0, source.name, ": groups ", lists.groups);
  lists.group_of = reader.take_array<int32_t>(shape.batch * shape.heads, "group_of");
  lists.list_count = reader.take_array<int32_t>(
      checked_mul(lists.groups, shape.q_len, "plan file: lists"), "list_count");
  lists.keys = reader.take_array<int32_t>(json.at("keys").get<int64_t>(), "keys");
  lists.list_begin = begins_of(lists.list_count, lists.keys.size(), source);
  verify(lists, shape, source);
  return lists;
}

Shape read_shape(const Json& json, const std::string& path) {
  Shape shape{json.at("batch").get<int64_t>(), json.at("heads").get<int64_t>(),
              json.at("q_len").get<int64_t>(), json.at("k_len").get<int64_t>(),
              json.at("offset").get<int64_t>()};
  for (const int64_t size : {shape.batch, shape.heads, shape.q_len, shape.k_len}) {
    KEYHOLE_CHECK(size >= 0 && size <= kMaxPlanLength, "plan file ", path, ": size ", size,
                  " is outside 0 .. ", kMaxPlanLength);
  }
  KEYHOLE_CHECK(*shape.offset >= -kMaxPlanOffset && *shape.offset <= kMaxPlanOffset, "plan file ",
                path, ": offset ", *shape.offset);
  KEYHOLE_CHECK(checked_mul(shape.batch, shape.heads, "plan file: heads") <= int64_t{1} << 31,
                "plan file ", path, ": too many heads");
  return shape;
}

// The node of a group of a part, from its text. A resolved node belongs to one head.
NodePtr node_of(const std::string& text, const Shape& shape) {
  const Shape one_head{1, 1, shape.q_len, shape.k_len, shape.q_offset()};
  return parse(text).for_head(one_head).node();
}

// Whether the text determines the node. Arrays and functions appear in it only by name.
bool tells_the_node(const std::string& text, const Shape& shape) {
  try {
    return node_of(text, shape)->text() == text;
  } catch (const Error&) {
    return false;
  }
}

// The parts in tiles form, or null if a text does not determine one of their nodes. The other parts
// need no text: all their lists are in the file.
Json describe_parts(const PlanState& state) {
  if (!state.parts()) return nullptr;
  Json parts = Json::array();
  size_t bytes = 0;
  for (const PartSpec& part : *state.parts()) {
    if (part.key.form != PartForm::tiles) continue;
    Json groups = Json::array();
    for (const NodePtr& node : part.group_nodes) {
      std::string text = node->text();
      bytes += text.size();
      if (bytes > kMaxPartTextBytes || !tells_the_node(text, state.shape())) return nullptr;
      groups.push_back(std::move(text));
    }
    parts.push_back({{"stride", part.key.stride}, {"groups", std::move(groups)}});
  }
  return parts;
}

void put_group_of(Writer& arrays, const std::vector<PartSpec>& parts) {
  for (const PartSpec& part : parts) {
    if (part.key.form == PartForm::tiles) arrays.put_array(part.group_of);
  }
}

PartSpec read_part(Reader& reader, const Json& json, const Shape& shape, const std::string& path) {
  PartSpec part;
  part.key.stride = json.at("stride").get<int64_t>();
  KEYHOLE_CHECK(part.key.stride >= 1 && part.key.stride <= std::max(shape.q_len, shape.k_len),
                "plan file ", path, ": a part with stride ", part.key.stride, " for lengths ",
                shape.q_len, " and ", shape.k_len);
  for (const Json& text : json.at("groups")) {
    try {
      part.group_nodes.push_back(node_of(text.get<std::string>(), shape));
    } catch (const Error& error) {
      throw Error(error.kind(), say("plan file ", path, ": the pattern of a part: ", error.what()));
    }
  }
  part.group_of = reader.take_array<int32_t>(shape.batch * shape.heads, "group_of of a part");
  for (const int32_t group : part.group_of) {
    KEYHOLE_CHECK(group >= -1 && group < int64_t(part.group_nodes.size()), "plan file ", path,
                  ": group ", group, " of a part with ", part.group_nodes.size());
  }
  return part;
}

// Lists in the file and lists compiled from its parts must have the same heads and classes.
void check_fits(const PartSpec& part, const TileLists& lists, const std::string& path) {
  const auto has_head = [](int32_t group) { return group >= 0; };
  KEYHOLE_CHECK(part.key.stride == lists.stride &&
                    std::equal(part.group_of.begin(), part.group_of.end(), lists.group_of.begin(),
                               lists.group_of.end(),
                               [&](int32_t a, int32_t b) { return has_head(a) == has_head(b); }),
                "plan file ", path, ": lists of tile ", to_string(lists.tile),
                " do not match the parts that the file describes");
}

}  // namespace

std::vector<std::byte> plan_file_bytes(const Plan& plan) {
  PlanState& state = plan.state();
  // Makes sure the file has lists in a shape that every backend supports. A plan that was never
  // used has none, and one that was only explained may have others, from which a reader cannot
  // derive these.
  constexpr TileShape kEverybodys = {64, 64};
  const Json parts = describe_parts(state);
  const bool needs_lists = state.compiled_shapes().empty() || parts.is_null();
  if (needs_lists && state.can_compile(kEverybodys)) state.tiles(kEverybodys);
  const Shape& shape = state.shape();
  Json header;
  header["pattern"] = state.pattern_text();
  header["shape"] = {{"batch", shape.batch},
                     {"heads", shape.heads},
                     {"q_len", shape.q_len},
                     {"k_len", shape.k_len},
                     {"offset", shape.q_offset()}};
  // Lists of another tile shape, compiled after loading, must come from the same split.
  header["parts"] = parts;
  header["tiles"] = Json::array();
  header["gathers"] = Json::array();
  Writer arrays;
  if (!parts.is_null()) put_group_of(arrays, *state.parts());
  for (const TileShape& tile : state.compiled_shapes()) {
    Json entry = {{"q", tile.q}, {"k", tile.k}, {"parts", Json::array()}};
    for (const TileLists& part : state.tiles(tile).parts) {
      entry["parts"].push_back(describe(part));
      arrays.put_array(part.group_of);
      arrays.put_array(part.list_count);
      arrays.put_array(part.order);
      arrays.put_array(part.runs);
      arrays.put_array(part.bitmaps);
    }
    header["tiles"].push_back(std::move(entry));
  }
  for (const KeyLists& part : state.gathers()) {
    header["gathers"].push_back({{"groups", part.groups}, {"keys", part.keys.size()}});
    arrays.put_array(part.group_of);
    arrays.put_array(part.list_count);
    arrays.put_array(part.keys);
  }

  const std::string text = header.dump();
  Writer file;
  file.put_bytes(kMagic, sizeof kMagic);
  file.put(kVersion);
  file.put(kByteOrder);
  file.put(uint64_t(text.size()));
  file.put_bytes(text.data(), text.size());
  file.pad();
  file.put_bytes(arrays.bytes().data(), arrays.bytes().size());
  file.put(fnv1a64(file.bytes().data(), file.bytes().size()));
  return std::move(file.bytes());
}

void Plan::save(const std::string& path) const { write_file(path, plan_file_bytes(*this)); }

Plan load_plan(std::span<const std::byte> bytes, const std::string& path) {
  KEYHOLE_CHECK(bytes.size() >= kPreamble + kChecksum &&
                    std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0,
                path,
                " is not a plan file: it does not begin with the mark of one; plans are written by "
                "Plan::save or `keyhole plan --save`");
  const std::span<const std::byte> body = bytes.first(bytes.size() - kChecksum);
  Reader reader(body, path);
  reader.take<std::array<char, sizeof kMagic>>();
  const auto version = reader.take<uint32_t>();
  KEYHOLE_CHECK(version == kVersion, "plan file ", path, " has format version ", version,
                ", this library reads ", kVersion, "; make the plan again from its pattern");
  KEYHOLE_CHECK(
      reader.take<uint32_t>() == kByteOrder, "plan file ", path,
      " was written on a machine of another byte order; make the plan again from its pattern");
  uint64_t stored_checksum;
  std::memcpy(&stored_checksum, bytes.data() + body.size(), kChecksum);
  KEYHOLE_CHECK(fnv1a64(body.data(), body.size()) == stored_checksum, "plan file ", path,
                " is damaged: its checksum does not fit; make the plan again from its pattern");
  const auto header_bytes = reader.take<uint64_t>();
  KEYHOLE_CHECK(header_bytes <= uint64_t(kMaxHeaderBytes), "plan file ", path, ": a header of ",
                header_bytes, " bytes");
  try {
    const Json header = Json::parse(reader.take_text(size_t(header_bytes)));
    reader.skip_padding();
    const Shape shape = read_shape(header.at("shape"), path);
    const std::string text = header.at("pattern").get<std::string>();
    std::optional<std::vector<PartSpec>> parts;
    if (!header.at("parts").is_null()) {
      parts.emplace();
      for (const Json& part : header.at("parts")) {
        parts->push_back(read_part(reader, part, shape, path));
      }
    }
    const Source source{"of plan file " + path, ErrorKind::usage};
    std::map<TileShape, CompiledTiles> tiles;
    for (const Json& entry : header.at("tiles")) {
      const TileShape tile{narrow(entry.at("q").get<int64_t>(), "plan file: tile"),
                           narrow(entry.at("k").get<int64_t>(), "plan file: tile")};
      KEYHOLE_CHECK(tile.q >= 1 && tile.k >= 1 && tile.q <= 1024 && tile.k <= 1024, "plan file ",
                    path, ": tile ", to_string(tile));
      CompiledTiles compiled;
      for (const Json& part : entry.at("parts")) {
        compiled.parts.push_back(read_tiles(reader, part, shape, tile, source));
        if (!parts) continue;
        const size_t index = compiled.parts.size() - 1;
        KEYHOLE_CHECK(index < parts->size(), "plan file ", path, ": tile ", to_string(tile),
                      " has more parts than the ", parts->size(), " that the file describes");
        check_fits((*parts)[index], compiled.parts.back(), path);
      }
      KEYHOLE_CHECK(!parts || compiled.parts.size() == parts->size(), "plan file ", path, ": tile ",
                    to_string(tile), " has ", compiled.parts.size(), " of the ", parts->size(),
                    " parts that the file describes");
      tiles[tile] = std::move(compiled);
    }
    std::vector<KeyLists> gathers;
    for (const Json& part : header.at("gathers")) {
      gathers.push_back(read_keys(reader, part, shape, source));
    }
    KEYHOLE_CHECK(reader.at_end(), "plan file ", path, " has bytes after its last array");
    KEYHOLE_CHECK(!tiles.empty(), "plan file ", path, " holds no lists");
    return Plan(std::make_shared<PlanState>(text, shape, std::move(parts), std::move(tiles),
                                            std::move(gathers)));
  } catch (const Json::exception& broken) {
    throw Error(ErrorKind::usage,
                say("plan file ", path, ": its header is not valid: ", broken.what()));
  }
}

Plan Plan::load(const std::string& path) { return load_plan(read_file(path, kMaxFileBytes), path); }

}  // namespace keyhole
