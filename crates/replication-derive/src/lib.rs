//! Derive macros for `throng-replication`, which exports them: structs become classes, calls and
//! elements, enums become fields. The traits' documentation has examples.

#![forbid(unsafe_code)]

use proc_macro::TokenStream;
use proc_macro2::TokenStream as Tokens;
use quote::{format_ident, quote};
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Expr, Fields, Ident, LitStr, Path, Token, Type};

/// Implements `throng_replication::Replicate`: fields become the properties of a class, in their
/// order.
///
/// On the struct: `#[replicate(name = "...", cull_distance = METRES, delta, atomic, required,
/// temporary, retain, callable, predict = FRAME_RATE, calls(CALL, ...))]`, all optional; the name
/// is the struct's unless given. On a field: `#[replicate(QUANTISER, position, velocity, hide, max
/// = COUNT, condition = CONDITION, default = VALUE)]`, all optional, with an expression of type
/// `Quantiser` first; `keyed` makes a `BTreeMap<u32, ELEMENT>` a keyed array; `skip` leaves the
/// field out. `max` (default 255) bounds the field and what is within it: of a `Vec<String>` the
/// strings and the bytes of each one. A quantiser gives each its own limit.
///
/// Each property `health` gets a constant `HEALTH` with its number and a setter `set_health`.
#[proc_macro_derive(Replicate, attributes(replicate))]
pub fn derive_replicate(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    replicate(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `throng_replication::Field` for an enum, with or without data. The first variant is
/// its default there. On a field of a variant: `#[replicate(QUANTISER, max = COUNT)]`.
#[proc_macro_derive(Field, attributes(replicate))]
pub fn derive_field(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    field(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `throng_replication::TypedCall` for a struct: `#[call(to = server)]` or `#[call(to =
/// clients)]`, with `unreliable` and `callable` beside. On a field: `#[replicate(QUANTISER, max =
/// COUNT)]`.
#[proc_macro_derive(Call, attributes(call, replicate))]
pub fn derive_call(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    call(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `throng_replication::Element` for a struct of plain fields. On a field:
/// `#[replicate(QUANTISER)]`.
#[proc_macro_derive(Element, attributes(replicate))]
pub fn derive_element(input: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    element(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// Elements and bytes of fields that name no limit.
const MAX_DEFAULT: u32 = 255;

/// Options of a struct.
#[derive(Default)]
struct ClassOptions {
    name: Option<LitStr>,
    builder: Vec<Tokens>,
    calls: Vec<Path>,
}

impl Parse for ClassOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "name" => {
                    input.parse::<Token![=]>()?;
                    options.name = Some(input.parse()?);
                }
                "cull_distance" => {
                    input.parse::<Token![=]>()?;
                    let metres: Expr = input.parse()?;
                    options.builder.push(quote!(.cull_distance(#metres)));
                }
                "predict" => {
                    input.parse::<Token![=]>()?;
                    let rate: Expr = input.parse()?;
                    options.builder.push(quote!(.predict(#rate)));
                }
                "calls" => {
                    let inner;
                    syn::parenthesized!(inner in input);
                    options.calls.extend(Punctuated::<Path, Token![,]>::parse_terminated(&inner)?);
                }
                "delta" | "atomic" | "required" | "temporary" | "retain" | "callable" => {
                    options.builder.push(quote!(.#key(true)));
                }
                other => {
                    let known = "name, cull_distance, delta, atomic, required, temporary, retain, callable, \
                                 predict, calls";
                    return Err(Error::new(key.span(), format!("unknown option `{other}`; known: {known}")));
                }
            }
            comma(input)?;
        }
        Ok(options)
    }
}

/// Options of a field.
#[derive(Default)]
struct FieldOptions {
    skip: bool,
    keyed: bool,
    hide: Option<Ident>,
    quantiser: Option<Expr>,
    max: Option<Expr>,
    condition: Option<Expr>,
    property: Vec<Tokens>,
}

const FIELD_OPTIONS: &str = "skip, keyed, position, velocity, hide, max, condition, default";

impl Parse for FieldOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            // An option is a lone word, or a word and a value; everything else is the quantiser.
            let ahead = input.fork();
            let word: Option<Ident> = ahead.parse().ok();
            let ends = ahead.is_empty() || ahead.peek(Token![,]) || ahead.peek(Token![=]);
            let Some(key) = word.filter(|_| ends) else {
                if options.quantiser.is_some() {
                    return Err(input.error("one quantiser for each field"));
                }
                options.quantiser = Some(input.parse()?);
                comma(input)?;
                continue;
            };
            input.parse::<Ident>()?;
            match key.to_string().as_str() {
                "skip" => options.skip = true,
                "keyed" => options.keyed = true,
                "hide" => options.hide = Some(key),
                "position" => options.property.push(quote!(.world_position())),
                "velocity" => options.property.push(quote!(.velocity())),
                "max" => {
                    input.parse::<Token![=]>()?;
                    options.max = Some(input.parse()?);
                }
                "condition" => {
                    input.parse::<Token![=]>()?;
                    options.condition = Some(input.parse()?);
                }
                "default" => {
                    input.parse::<Token![=]>()?;
                    let value: Expr = input.parse()?;
                    options.property.push(quote!(.default_value(#value)));
                }
                other => {
                    let message = format!("unknown option `{other}`; known: {FIELD_OPTIONS}");
                    return Err(Error::new(key.span(), message));
                }
            }
            comma(input)?;
        }
        Ok(options)
    }
}

impl FieldOptions {
    fn of(field: &syn::Field) -> syn::Result<Self> {
        let mut found = None;
        for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("replicate")) {
            if found.is_some() {
                return Err(Error::new(attribute.span(), "one `replicate` attribute for each field"));
            }
            found = Some(attribute.parse_args()?);
        }
        Ok(found.unwrap_or_default())
    }

    /// Options that stand for nothing but the quantiser.
    fn of_value(field: &syn::Field) -> syn::Result<Self> {
        let options = Self::of(field)?;
        if options.skip || options.keyed || options.condition.is_some() || !options.property.is_empty() {
            return Err(Error::new(field.span(), "only a quantiser, hide and max are possible here"));
        }
        Ok(options)
    }

    fn quantiser(&self, ty: &Type) -> Tokens {
        let max = self.max();
        match (&self.quantiser, &self.hide) {
            (Some(quantiser), _) => quote!(#quantiser),
            (None, Some(_)) => quote!(::throng_replication::Quantiser::Handle { hide: true }),
            (None, None) => quote!(<#ty as ::throng_replication::Field>::quantiser(#max)),
        }
    }

    fn max(&self) -> Tokens {
        let default = MAX_DEFAULT;
        self.max.as_ref().map_or(quote!(#default), |max| quote!(#max))
    }
}

fn comma(input: ParseStream<'_>) -> syn::Result<()> {
    if input.is_empty() { Ok(()) } else { input.parse::<Token![,]>().map(|_| ()) }
}

/// The named fields of a struct; a struct without fields has none.
fn named_fields(input: &DeriveInput) -> syn::Result<Vec<(&Ident, &syn::Field)>> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.span(), "only a struct is possible here"));
    };
    match &data.fields {
        Fields::Named(fields) => {
            Ok(fields.named.iter().filter_map(|field| Some((field.ident.as_ref()?, field))).collect())
        }
        Fields::Unit => Ok(Vec::new()),
        Fields::Unnamed(_) => Err(Error::new(data.fields.span(), "fields need names")),
    }
}

fn replicate(input: &DeriveInput) -> syn::Result<Tokens> {
    let mut options = ClassOptions::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("replicate")) {
        options = attribute.parse_args()?;
    }
    let ident = &input.ident;
    let name = options.name.unwrap_or_else(|| LitStr::new(&ident.to_string(), ident.span()));
    let (mut builder, calls) = (options.builder, options.calls);

    let (mut items, mut writes, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let (mut properties, mut arrays) = (0_usize, 0_usize);
    for (field_name, field) in named_fields(input)? {
        let options = FieldOptions::of(field)?;
        if options.skip {
            continue;
        }
        let (ty, vis) = (&field.ty, &field.vis);
        let text = field_name.to_string();
        let text = text.trim_start_matches("r#");
        let number = if options.keyed { arrays } else { properties };
        let kind = if options.keyed { "keyed array" } else { "property" };
        let (constant_doc, setter_doc) =
            (format!("Number of the {kind} `{text}`."), format!("Sets the {kind} `{text}` of an object."));
        let constant = format_ident!("{}", text.to_uppercase(), span = field_name.span());
        let setter = format_ident!("set_{}", text, span = field_name.span());
        let condition = options.condition.as_ref().map(|condition| quote!(.condition(#condition)));
        let (write, of) = if options.keyed {
            arrays += 1;
            let max = options.max();
            builder.push(quote!(.keyed(
                ::throng_replication::keyed_of::<#ty>(#text, #max) #condition
            )));
            reads.push(quote!(
                ::throng_replication::read_elements(replica, #number, &mut self.#field_name)?;
            ));
            let write = |value: Tokens| quote!(::throng_replication::write_elements(server, handle, #number, #value)?;);
            (write(quote!(&self.#field_name)), write(quote!(value)))
        } else {
            properties += 1;
            let (quantiser, calls) = (options.quantiser(ty), &options.property);
            builder.push(quote!(.property(
                ::throng_replication::Property::new(#text, #quantiser) #(#calls)* #condition
            )));
            reads.push(quote!(
                ::throng_replication::read_field(replica, #number, &mut self.#field_name)?;
            ));
            let write = |value: Tokens| quote!(server.set(handle, #number, ::throng_replication::Field::to_value(#value))?;);
            (write(quote!(&self.#field_name)), write(quote!(value)))
        };
        writes.push(write);
        items.push(quote! {
            #[doc = #constant_doc]
            #[allow(dead_code)]
            pub const #constant: usize = #number;

            #[doc = #setter_doc]
            ///
            /// # Errors
            /// When the object does not exist or the value does not fit.
            #[allow(dead_code)]
            #vis fn #setter(
                server: &mut ::throng_replication::Server,
                handle: ::throng_replication::Handle<Self>,
                value: &#ty,
            ) -> ::core::result::Result<(), ::throng_replication::ObjectError> {
                let handle = handle.untyped();
                #of
                ::core::result::Result::Ok(())
            }
        });
    }
    let numbers = 0..calls.len() as u64;
    let (generics, arguments, wheres) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics #ident #arguments #wheres {
            #(#items)*
        }

        #(impl ::throng_replication::CallOn for #calls {
            type Object = #ident;
            const NUMBER: u64 = #numbers;
        })*

        impl #generics ::throng_replication::Replicate for #ident #arguments #wheres {
            fn class() -> ::core::result::Result<::throng_replication::Class, ::throng_replication::ClassError> {
                ::throng_replication::Class::builder(#name)
                    #(#builder)*
                    #(.call(<#calls as ::throng_replication::TypedCall>::description()))*
                    .build()
            }

            fn write(
                &self,
                server: &mut ::throng_replication::Server,
                handle: ::throng_replication::Handle,
            ) -> ::core::result::Result<(), ::throng_replication::ObjectError> {
                let class = server.class(handle).ok_or(::throng_replication::ObjectError::Unknown)?;
                if class.name() != #name {
                    return ::core::result::Result::Err(::throng_replication::ObjectError::OtherClass);
                }
                #(#writes)*
                ::core::result::Result::Ok(())
            }

            fn read_into(&mut self, replica: &::throng_replication::Replica) -> ::core::option::Option<()> {
                if replica.class().name() != #name {
                    return ::core::option::Option::None;
                }
                #(#reads)*
                ::core::option::Option::Some(())
            }
        }
    })
}

fn field(input: &DeriveInput) -> syn::Result<Tokens> {
    let Data::Enum(data) = &input.data else {
        return Err(Error::new(
            input.span(),
            "only an enum can be a field by derivation; nest structs as parts",
        ));
    };
    let ident = &input.ident;
    let (mut shapes, mut values, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    let mut first = None;
    for (number, variant) in data.variants.iter().enumerate() {
        let (name, number) = (&variant.ident, number as u32);
        let text = name.to_string();
        let mut quantisers = Vec::new();
        for field in &variant.fields {
            quantisers.push(FieldOptions::of_value(field)?.quantiser(&field.ty));
        }
        let names: Vec<Ident> = (0..variant.fields.len()).map(|at| format_ident!("field_{at}")).collect();
        let pattern = match &variant.fields {
            Fields::Named(fields) => {
                let labels = fields.named.iter().map(|field| &field.ident);
                quote!({ #(#labels: #names),* })
            }
            Fields::Unnamed(_) => quote!((#(#names),*)),
            Fields::Unit => quote!(),
        };
        let defaults = match &variant.fields {
            Fields::Named(fields) => {
                let labels = fields.named.iter().map(|field| &field.ident);
                quote!({ #(#labels: ::core::default::Default::default()),* })
            }
            Fields::Unnamed(fields) => {
                let each = fields.unnamed.iter().map(|_| quote!(::core::default::Default::default()));
                quote!((#(#each),*))
            }
            Fields::Unit => quote!(),
        };
        shapes.push(quote!((::std::string::String::from(#text), ::std::vec![#(#quantisers),*])));
        values.push(quote! {
            Self::#name #pattern => ::throng_replication::Value::Enum(
                #number,
                ::std::vec![#(::throng_replication::Field::to_value(#names)),*],
            )
        });
        // The memory of a value of the same variant is used again.
        reads.push(quote! {
            #number => {
                if !::core::matches!(self, Self::#name { .. }) {
                    *self = Self::#name #defaults;
                }
                #[allow(irrefutable_let_patterns)]
                if let Self::#name #pattern = self {
                    #(fields.read(#names)?;)*
                }
            }
        });
        first.get_or_insert(number);
    }
    if first.is_none() {
        return Err(Error::new(input.span(), "an enum needs a variant"));
    }
    let (generics, arguments, wheres) = input.generics.split_for_impl();
    Ok(quote! {
        impl #generics ::throng_replication::Field for #ident #arguments #wheres {
            fn quantiser(_: u32) -> ::throng_replication::Quantiser {
                ::throng_replication::Quantiser::Enum(::std::vec![#(#shapes),*])
            }

            fn to_value(&self) -> ::throng_replication::Value {
                match self {
                    #(#values,)*
                }
            }

            fn read_from(
                &mut self,
                reader: &mut ::throng_replication::FieldReader<'_, '_>,
            ) -> ::core::option::Option<()> {
                #[allow(unused_mut, unused_variables)]
                let (number, mut fields) = reader.variant()?;
                match number {
                    #(#reads)*
                    _ => return ::core::option::Option::None,
                }
                ::core::option::Option::Some(())
            }
        }
    })
}

/// Options of a call.
#[derive(Default)]
struct CallOptions {
    direction: Option<Tokens>,
    builder: Vec<Tokens>,
}

impl Parse for CallOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            let key: Ident = input.parse()?;
            match key.to_string().as_str() {
                "to" => {
                    input.parse::<Token![=]>()?;
                    let side: Ident = input.parse()?;
                    let direction = match side.to_string().as_str() {
                        "server" => quote!(ToServer),
                        "clients" => quote!(ToClients),
                        _ => return Err(Error::new(side.span(), "a call goes to `server` or to `clients`")),
                    };
                    options.direction = Some(quote!(::throng_replication::Direction::#direction));
                }
                "unreliable" | "callable" => options.builder.push(quote!(.#key())),
                other => {
                    let message = format!("unknown option `{other}`; known: to, unreliable, callable");
                    return Err(Error::new(key.span(), message));
                }
            }
            comma(input)?;
        }
        Ok(options)
    }
}

fn call(input: &DeriveInput) -> syn::Result<Tokens> {
    let mut options = CallOptions::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("call")) {
        options = attribute.parse_args()?;
    }
    let Some(direction) = options.direction else {
        return Err(Error::new(
            input.ident.span(),
            "name the side: #[call(to = server)] or #[call(to = clients)]",
        ));
    };
    let (ident, builder) = (&input.ident, options.builder);
    let text = ident.to_string();
    let (mut names, mut quantisers) = (Vec::new(), Vec::new());
    for (name, field) in named_fields(input)? {
        quantisers.push(FieldOptions::of_value(field)?.quantiser(&field.ty));
        names.push(name);
    }
    Ok(quote! {
        impl ::throng_replication::TypedCall for #ident {
            fn description() -> ::throng_replication::Call {
                ::throng_replication::Call::new(#text, #direction) #(#builder)* #(.argument(#quantisers))*
            }

            fn to_value(&self) -> ::throng_replication::Value {
                ::throng_replication::Value::Enum(
                    0,
                    ::std::vec![#(::throng_replication::Field::to_value(&self.#names)),*],
                )
            }

            fn read_from(
                &mut self,
                reader: &mut ::throng_replication::FieldReader<'_, '_>,
            ) -> ::core::option::Option<()> {
                #[allow(unused_mut, unused_variables)]
                let (_, mut fields) = reader.variant()?;
                #(fields.read(&mut self.#names)?;)*
                ::core::option::Option::Some(())
            }
        }
    })
}

fn element(input: &DeriveInput) -> syn::Result<Tokens> {
    let ident = &input.ident;
    let (mut names, mut texts, mut quantisers) = (Vec::new(), Vec::new(), Vec::new());
    for (name, field) in named_fields(input)? {
        quantisers.push(FieldOptions::of_value(field)?.quantiser(&field.ty));
        texts.push(name.to_string());
        names.push(name);
    }
    Ok(quote! {
        impl ::throng_replication::Element for #ident {
            fn keyed(name: &str, max: u32) -> ::throng_replication::Keyed {
                ::throng_replication::Keyed::new(name, max) #(.field(#texts, #quantisers))*
            }

            fn values(&self) -> ::std::vec::Vec<::throng_replication::Value> {
                ::std::vec![#(::throng_replication::Field::to_value(&self.#names)),*]
            }

            fn read_from(
                &mut self,
                fields: &mut dyn ::core::iter::Iterator<Item = ::throng_replication::FieldReader<'_, '_>>,
            ) -> ::core::option::Option<()> {
                #(::throng_replication::Field::read_from(&mut self.#names, &mut fields.next()?)?;)*
                ::core::option::Option::Some(())
            }
        }
    })
}
