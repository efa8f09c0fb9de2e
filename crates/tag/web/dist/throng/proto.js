import { ThrongError } from "./errors.js";
const UTF8 = new TextEncoder();
const TEXT = new TextDecoder();
/** Wire types of protobuf. */
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const GROUP_START = 3;
const GROUP_END = 4;
const FIXED32 = 5;
/** Nesting of unknown groups that is skipped; the gateway's limit too. */
const GROUPS_MAX = 100;
/**
 * Writes protobuf. Values that are the type's default (0, false, empty) are left out, as proto3 does; pass
 * `true` as the last argument for fields with explicit presence. `undefined` is always left out.
 *
 * ```ts
 * const bytes = new ProtoWriter().uint32(1, 7).string(2, "alice").finish();
 * ```
 */
export class ProtoWriter {
    #bytes = new Uint8Array(64);
    #length = 0;
    /** An unsigned or enumerated number. */
    uint32(field, value, explicit = false) {
        if (value === undefined || (value === 0 && !explicit))
            return this;
        this.#tag(field, VARINT);
        this.#varint(value >>> 0);
        return this;
    }
    /** A signed number in the `int32` encoding: ten bytes when negative. */
    int32(field, value, explicit = false) {
        if (value === undefined || (value === 0 && !explicit))
            return this;
        this.#tag(field, VARINT);
        if (value >= 0) {
            this.#varint(value);
        }
        else {
            this.#room(10);
            let low = value | 0;
            for (let i = 0; i < 9; i++) {
                this.#bytes[this.#length++] = (low & 0x7f) | 0x80;
                low >>= 7;
            }
            this.#bytes[this.#length++] = 1;
        }
        return this;
    }
    /** A number in the `sint32` encoding: short when near zero on either side. */
    sint32(field, value, explicit = false) {
        return this.uint32(field, value === undefined ? undefined : ((value << 1) ^ (value >> 31)) >>> 0, explicit);
    }
    /** A boolean. */
    bool(field, value, explicit = false) {
        return this.uint32(field, value === undefined ? undefined : Number(value), explicit);
    }
    /** A 32-bit float. */
    float(field, value, explicit = false) {
        if (value === undefined || (value === 0 && !explicit))
            return this;
        this.#tag(field, FIXED32);
        this.#room(4);
        new DataView(this.#bytes.buffer).setFloat32(this.#length, value, true);
        this.#length += 4;
        return this;
    }
    /** A 64-bit float. */
    double(field, value, explicit = false) {
        if (value === undefined || (value === 0 && !explicit))
            return this;
        this.#tag(field, FIXED64);
        this.#room(8);
        new DataView(this.#bytes.buffer).setFloat64(this.#length, value, true);
        this.#length += 8;
        return this;
    }
    /** A string. */
    string(field, value, explicit = false) {
        return this.bytes(field, value === undefined ? undefined : UTF8.encode(value), explicit);
    }
    /** Bytes. */
    bytes(field, value, explicit = false) {
        if (value === undefined || (value.length === 0 && !explicit))
            return this;
        this.#tag(field, BYTES);
        this.#varint(value.length);
        this.#room(value.length);
        this.#bytes.set(value, this.#length);
        this.#length += value.length;
        return this;
    }
    /** A nested message; one of no fields is written as well, because its presence may mean something. */
    message(field, write) {
        if (write === undefined)
            return this;
        const inner = new ProtoWriter();
        write(inner);
        return this.bytes(field, inner.finish(), true);
    }
    /** The written bytes. */
    finish() {
        return this.#bytes.slice(0, this.#length);
    }
    #tag(field, wireType) {
        this.#varint(((field << 3) | wireType) >>> 0);
    }
    #varint(value) {
        this.#room(5);
        while (value > 0x7f) {
            this.#bytes[this.#length++] = (value & 0x7f) | 0x80;
            value >>>= 7;
        }
        this.#bytes[this.#length++] = value;
    }
    #room(count) {
        if (this.#length + count <= this.#bytes.length)
            return;
        const larger = new Uint8Array(Math.max(this.#bytes.length * 2, this.#length + count));
        larger.set(this.#bytes.subarray(0, this.#length));
        this.#bytes = larger;
    }
}
/**
 * Reads protobuf, field by field. Nothing is copied: {@link bytes} is a view into the input. Any input gives
 * values or a {@link ThrongError} of code `malformed`.
 *
 * ```ts
 * const reader = new ProtoReader(bytes);
 * while (reader.next()) {
 *   switch (reader.field) {
 *     case 1: id = reader.uint32(); break;
 *     case 2: name = reader.string(); break;
 *   }
 * }
 * ```
 */
export class ProtoReader {
    /** Number of the current field. */
    field = 0;
    #input;
    #at = 0;
    #wireType = 0;
    /** Low and high half of a varint; place and end of everything else. */
    #low = 0;
    #high = 0;
    #start = 0;
    #end = 0;
    constructor(input) {
        this.#input = input;
    }
    /** Goes to the next field; `false` at the end. */
    next() {
        while (this.#at < this.#input.length) {
            this.#varint();
            this.field = this.#low >>> 3;
            this.#wireType = this.#low & 7;
            if (this.field === 0)
                throw malformed("field number 0");
            if (this.#wireType === GROUP_START) {
                this.#skipGroup(this.field);
                continue;
            }
            this.#value();
            return true;
        }
        return false;
    }
    /** The value as an unsigned number of 32 bits; longer ones are cut, as the protocol says. */
    uint32() {
        return this.#wireType === VARINT ? this.#low >>> 0 : 0;
    }
    /** The value as a signed number of 32 bits. */
    int32() {
        return this.uint32() | 0;
    }
    /** The value of a `sint32` field. */
    sint32() {
        const value = this.uint32();
        return (value >>> 1) ^ -(value & 1);
    }
    /** The value as a number of 64 bits. */
    int64() {
        return BigInt.asIntN(64, (BigInt(this.#high >>> 0) << 32n) | BigInt(this.uint32()));
    }
    /** The value as a truth value. */
    bool() {
        return this.#wireType === VARINT && (this.#low | this.#high) !== 0;
    }
    /** The value of a `float` field. */
    float() {
        return this.#wireType === FIXED32 ? this.#view().getFloat32(0, true) : 0;
    }
    /** The value of a `double` field. */
    double() {
        return this.#wireType === FIXED64 ? this.#view().getFloat64(0, true) : 0;
    }
    /** The value as bytes: a view into the input. */
    bytes() {
        return this.#wireType === BYTES ? this.#input.subarray(this.#start, this.#end) : new Uint8Array();
    }
    /** The value as text; wrong UTF-8 becomes replacement characters. */
    string() {
        return TEXT.decode(this.bytes());
    }
    #view() {
        return new DataView(this.#input.buffer, this.#input.byteOffset + this.#start, this.#end - this.#start);
    }
    #value() {
        switch (this.#wireType) {
            case VARINT:
                this.#varint();
                return;
            case FIXED64:
                this.#span(8);
                return;
            case FIXED32:
                this.#span(4);
                return;
            case BYTES:
                this.#varint();
                if (this.#high !== 0)
                    throw malformed("a length over 32 bits");
                this.#span(this.#low >>> 0);
                return;
            default:
                throw malformed(`wire type ${this.#wireType}`);
        }
    }
    #span(length) {
        if (length > this.#input.length - this.#at)
            throw malformed("a value that ends behind the input");
        this.#start = this.#at;
        this.#at += length;
        this.#end = this.#at;
    }
    #varint() {
        let low = 0;
        let high = 0;
        for (let shift = 0; shift < 70; shift += 7) {
            const byte = this.#input[this.#at];
            if (byte === undefined)
                throw malformed("a number that does not end");
            this.#at++;
            const bits = byte & 0x7f;
            if (shift < 32)
                low |= bits << shift;
            if (shift === 28)
                high = bits >>> 4;
            else if (shift > 28)
                high |= bits << (shift - 32);
            if (byte < 0x80) {
                this.#low = low;
                this.#high = high;
                return;
            }
        }
        throw malformed("a number of more than ten bytes");
    }
    #skipGroup(number) {
        const open = [number];
        while (open.length > 0) {
            if (open.length > GROUPS_MAX)
                throw malformed("groups nested too deeply");
            this.#varint();
            const field = this.#low >>> 3;
            this.#wireType = this.#low & 7;
            if (field === 0)
                throw malformed("field number 0");
            if (this.#wireType === GROUP_START)
                open.push(field);
            else if (this.#wireType !== GROUP_END)
                this.#value();
            else if (open.pop() !== field)
                throw malformed("a group that ends as another");
        }
    }
}
function malformed(what) {
    return new ThrongError("malformed", `not protobuf: ${what}`);
}
